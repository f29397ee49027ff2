(function_definition name: (name) @name) @function
(method_declaration name: (name) @name) @method
(class_declaration name: (name) @name) @class
(interface_declaration name: (name) @name) @interface
(trait_declaration name: (name) @name) @trait
(enum_declaration name: (name) @name) @enum
(base_clause [(name) (qualified_name)] @base)
(function_call_expression function: [(name) (qualified_name)] @call)
(member_call_expression object: (_) @on name: (name) @call)
(nullsafe_member_call_expression object: (_) @on name: (name) @call)
(scoped_call_expression scope: (_) @on name: (name) @call)
(object_creation_expression [(name) (qualified_name)] @call)
(namespace_use_clause . [(qualified_name) (name)] @import)
(require_expression (string) @import)
(require_once_expression (string) @import)
(include_expression (string) @import)
(include_once_expression (string) @import)
(require_once_expression (binary_expression right: (string) @import))
(require_expression (binary_expression right: (string) @import))
(namespace_use_declaration) @binds
