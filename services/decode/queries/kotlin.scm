(class_declaration name: (identifier) @name) @class
(object_declaration name: (identifier) @name) @class
(function_declaration name: (identifier) @name) @function
(type_alias type: (identifier) @name) @type
(class_declaration (delegation_specifiers (delegation_specifier (constructor_invocation (user_type) @base))))
(call_expression . (identifier) @call)
(call_expression . (navigation_expression (_) @on (identifier) @call .))
(import (qualified_identifier) @import)
(import) @binds
