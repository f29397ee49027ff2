(function_declaration name: (identifier) @name) @function
(method_declaration receiver: (parameter_list (parameter_declaration type: (_) @owner))
    name: (field_identifier) @name) @method
(type_spec name: (type_identifier) @name) @type
(call_expression function: (identifier) @call)
(call_expression function: (selector_expression operand: (_) @on field: (field_identifier) @call))
(import_spec path: (_) @import)
(import_spec) @binds
