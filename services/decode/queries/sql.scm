(create_table (object_reference name: (identifier) @name)) @table
(create_view (object_reference name: (identifier) @name)) @view
(create_materialized_view (object_reference name: (identifier) @name)) @view
(create_function . (keyword_create) (object_reference name: (identifier) @name)) @function
(create_type (object_reference name: (identifier) @name)) @type
(create_trigger (object_reference name: (identifier) @call) .)
(invocation (object_reference name: (identifier) @call))
