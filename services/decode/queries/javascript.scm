(function_declaration name: (identifier) @name) @function
(generator_function_declaration name: (identifier) @name) @function
(export_statement "default" @name value: [(arrow_function) (function_expression)]) @function
(variable_declarator name: (identifier) @name value: [(arrow_function) (function_expression)]) @function
(method_definition name: (property_identifier) @name) @method
(call_expression function: (identifier) @call)
(call_expression function: (member_expression object: (_) @on property: (property_identifier) @call))
(new_expression constructor: (identifier) @call)
(new_expression constructor: (member_expression object: (_) @on property: (property_identifier) @call))
(import_statement source: (string) @import)
(export_statement source: (string) @import)
(call_expression function: (identifier) @require arguments: (arguments . (string) @import) (#eq? @require "require"))
(call_expression function: (import) arguments: (arguments . (string) @import))
(import_statement) @binds
(export_statement) @binds
(variable_declarator value: [(call_expression) (await_expression) (member_expression)]) @binds
(assignment_expression left: (member_expression)) @binds
