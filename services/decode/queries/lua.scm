(function_declaration name: (identifier) @name) @function
(function_declaration name: (dot_index_expression table: (_) @owner field: (identifier) @name)) @method
(function_declaration name: (method_index_expression table: (_) @owner method: (identifier) @name)) @method
(assignment_statement (variable_list . name: (identifier) @name)
    (expression_list . value: (function_definition))) @function
(assignment_statement (variable_list . name: (dot_index_expression table: (_) @owner field: (identifier) @name))
    (expression_list . value: (function_definition))) @method
(function_call name: (identifier) @call)
(function_call name: (dot_index_expression table: (_) @on field: (identifier) @call))
(function_call name: (method_index_expression table: (_) @on method: (identifier) @call))
(function_call name: (identifier) @load arguments: (arguments . (string) @import) (#eq? @load "require"))
