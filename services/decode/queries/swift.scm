(function_declaration name: (simple_identifier) @name) @function
(protocol_function_declaration name: (simple_identifier) @name) @method
(init_declaration "init" @name) @method
(class_declaration declaration_kind: ["class" "actor"] name: (type_identifier) @name) @class
(class_declaration declaration_kind: "struct" name: (type_identifier) @name) @struct
(class_declaration declaration_kind: "enum" name: (type_identifier) @name) @enum
(class_declaration declaration_kind: "extension" name: (user_type) @name) @impl
(protocol_declaration name: (type_identifier) @name) @interface
(typealias_declaration name: (type_identifier) @name) @type
(class_declaration . "class" (inheritance_specifier inherits_from: (user_type) @base))
(call_expression . (simple_identifier) @call)
(call_expression . (navigation_expression target: (_) @on suffix: (navigation_suffix
    suffix: (simple_identifier) @call)))
; The grammar reads `a() + b.c()` as a call of the sum.
(call_expression . (_ rhs: (simple_identifier) @call) (call_suffix))
(call_expression . (_ rhs: (navigation_expression target: (_) @on suffix: (navigation_suffix
    suffix: (simple_identifier) @call))) (call_suffix))
(import_declaration (identifier) @import)
