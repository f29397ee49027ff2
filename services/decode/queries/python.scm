(function_definition name: (identifier) @name) @function
(class_definition name: (identifier) @name) @class
(call function: (identifier) @call)
(call function: (attribute object: (_) @on attribute: (identifier) @call))
(import_statement name: (dotted_name) @import)
(import_statement name: (aliased_import name: (dotted_name) @import))
(import_from_statement) @from
(class_definition superclasses: (argument_list [(identifier) (attribute)] @base))
(class_definition superclasses: (argument_list (subscript value: [(identifier) (attribute)] @base)))
(import_statement) @binds
(import_from_statement) @binds
