(class_definition name: (identifier) @name) @class
(object_definition name: (identifier) @name) @class
(trait_definition name: (identifier) @name) @trait
(enum_definition name: (identifier) @name) @enum
(function_definition name: (_) @name) @function
(function_declaration name: (_) @name) @function
(type_definition name: (type_identifier) @name) @type
(extends_clause . type: [(type_identifier) (stable_type_identifier)] @base)
(extends_clause . type: (generic_type type: (type_identifier) @base))
(call_expression function: (identifier) @call)
(call_expression function: (generic_function function: (identifier) @call))
(call_expression function: (field_expression value: (_) @on field: (identifier) @call))
(instance_expression (type_identifier) @call)
(instance_expression (generic_type type: (type_identifier) @call))
(import_declaration) @import
(import_declaration) @binds
