(namespace_declaration name: (_) @name) @module
(class_declaration name: (identifier) @name) @class
(record_declaration name: (identifier) @name) @class
(struct_declaration name: (identifier) @name) @struct
(interface_declaration name: (identifier) @name) @interface
(enum_declaration name: (identifier) @name) @enum
(method_declaration name: (identifier) @name) @method
(constructor_declaration name: (identifier) @name) @method
(local_function_statement name: (identifier) @name) @function
(class_declaration (base_list . [(identifier) (qualified_name)] @base))
(class_declaration (base_list . (generic_name (identifier) @base)))
(invocation_expression function: (identifier) @call)
(invocation_expression function: (generic_name (identifier) @call))
(invocation_expression function: (member_access_expression expression: _ @on
    name: [(identifier) @call (generic_name (identifier) @call)]))
(invocation_expression function: (conditional_access_expression condition: (_) @on
    (member_binding_expression name: (identifier) @call)))
(object_creation_expression type: [(identifier) @call (generic_name (identifier) @call)])
(using_directive [(identifier) (qualified_name)] @import .)
(using_directive) @binds
