(class_declaration name: (identifier) @name) @class
(interface_declaration name: (identifier) @name) @interface
(enum_declaration name: (identifier) @name) @enum
(record_declaration name: (identifier) @name) @class
(method_declaration name: (identifier) @name) @method
(constructor_declaration name: (identifier) @name) @method
(method_invocation object: (_)? @on name: (identifier) @call)
(object_creation_expression type: (type_identifier) @call)
(import_declaration (scoped_identifier) @import)
(superclass (type_identifier) @base)
(superclass (generic_type (type_identifier) @base))
