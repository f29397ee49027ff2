(function_declaration name: (identifier) @name) @function
(generator_function_declaration name: (identifier) @name) @function
(variable_declarator name: (identifier) @name value: [(arrow_function) (function_expression)]) @function
(method_definition name: (property_identifier) @name) @method
(call_expression function: (identifier) @call)
(call_expression function: (member_expression object: (_) @on property: (property_identifier) @call))
(new_expression constructor: (identifier) @call)
(import_statement source: (string) @import)
(export_statement source: (string) @import)
(call_expression function: (identifier) @require arguments: (arguments . (string) @import) (#eq? @require "require"))
(call_expression function: (import) arguments: (arguments . (string) @import))
