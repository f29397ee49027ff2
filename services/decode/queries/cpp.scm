(class_specifier name: (type_identifier) @name body: (_)) @class
(function_definition declarator: (function_declarator declarator: (field_identifier) @name)) @method
(function_definition declarator: (function_declarator
    declarator: (qualified_identifier scope: (_) @owner name: (identifier) @name))) @method
(function_definition declarator: (function_declarator declarator: (qualified_identifier
    name: (qualified_identifier scope: (_) @owner name: (identifier) @name)))) @method
(function_definition declarator: (reference_declarator
    (function_declarator declarator: [(identifier) (field_identifier)] @name))) @function
(call_expression function: (qualified_identifier scope: (_) @on name: (identifier) @call))
(new_expression type: (type_identifier) @call)
(base_class_clause (type_identifier) @base)
(base_class_clause (qualified_identifier) @base)
