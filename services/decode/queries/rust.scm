(function_item name: (identifier) @name) @function
(struct_item name: (type_identifier) @name) @struct
(enum_item name: (type_identifier) @name) @enum
(trait_item name: (type_identifier) @name) @trait
(type_item name: (type_identifier) @name) @type
(macro_definition name: (identifier) @name) @macro
(impl_item type: [(type_identifier) (generic_type)] @name) @impl
(mod_item name: (identifier) @name body: (_)) @module
(mod_item name: (identifier) @import !body)
(call_expression function: (identifier) @call)
(call_expression function: (scoped_identifier path: (_) @on name: (identifier) @call))
(call_expression function: (field_expression value: (_) @on field: (field_identifier) @call))
(macro_invocation macro: (identifier) @call)
(use_declaration argument: (_) @import)
(use_declaration) @binds
