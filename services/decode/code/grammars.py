"""The languages whose code is understood, and what of their syntax trees is a definition, a call or an import.

Queries in tree-sitter's notation.  `@name` is what a definition is called, the capture around it its kind; `@owner`
the type that a method stands in, where that is not around it; `@call` a callee's name and `@on` what it is called on;
`@import` what is imported; `@base` what a class extends.
"""

from __future__ import annotations

import functools
from collections.abc import Callable

import tree_sitter
import tree_sitter_c
import tree_sitter_cpp
import tree_sitter_go
import tree_sitter_java
import tree_sitter_javascript
import tree_sitter_python
import tree_sitter_rust
import tree_sitter_typescript

_PYTHON = """
(function_definition name: (identifier) @name) @function
(class_definition name: (identifier) @name) @class
(call function: (identifier) @call)
(call function: (attribute object: (_) @on attribute: (identifier) @call))
(import_statement name: (dotted_name) @import)
(import_statement name: (aliased_import name: (dotted_name) @import))
(import_from_statement) @from
(class_definition superclasses: (argument_list [(identifier) (attribute)] @base))
(class_definition superclasses: (argument_list (subscript value: [(identifier) (attribute)] @base)))
"""

_JAVASCRIPT = """
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
"""

_TYPESCRIPT = """
(class_declaration name: (type_identifier) @name) @class
(abstract_class_declaration name: (type_identifier) @name) @class
(interface_declaration name: (type_identifier) @name) @interface
(enum_declaration name: (identifier) @name) @enum
(type_alias_declaration name: (type_identifier) @name) @type
(extends_clause value: [(identifier) (member_expression)] @base)
"""

_GO = """
(function_declaration name: (identifier) @name) @function
(method_declaration receiver: (parameter_list (parameter_declaration type: (_) @owner))
    name: (field_identifier) @name) @method
(type_spec name: (type_identifier) @name) @type
(call_expression function: (identifier) @call)
(call_expression function: (selector_expression operand: (_) @on field: (field_identifier) @call))
(import_spec path: (_) @import)
"""

_RUST = """
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
"""

_C = """
(function_definition declarator: (function_declarator declarator: (identifier) @name)) @function
(function_definition declarator: (pointer_declarator
    declarator: (function_declarator declarator: (identifier) @name))) @function
(struct_specifier name: (type_identifier) @name body: (_)) @struct
(union_specifier name: (type_identifier) @name body: (_)) @struct
(enum_specifier name: (type_identifier) @name body: (_)) @enum
(type_definition declarator: (type_identifier) @name) @type
(preproc_function_def name: (identifier) @name) @macro
(call_expression function: (identifier) @call)
(call_expression function: (field_expression argument: (_) @on field: (field_identifier) @call))
(preproc_include path: (_) @import)
"""

_CPP = """
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
"""

_JAVA = """
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
"""


_CLASSES_OF_JAVASCRIPT = """
(class_declaration name: (identifier) @name) @class
(class_heritage [(identifier) (member_expression)] @base)
"""

_typescript = tree_sitter_typescript.language_typescript
_GRAMMARS: dict[str, tuple[Callable[[], object], str]] = {
    "python": (tree_sitter_python.language, _PYTHON),
    "javascript": (tree_sitter_javascript.language, _JAVASCRIPT + _CLASSES_OF_JAVASCRIPT),
    "typescript": (_typescript, _JAVASCRIPT + _TYPESCRIPT),
    "tsx": (tree_sitter_typescript.language_tsx, _JAVASCRIPT + _TYPESCRIPT),
    "go": (tree_sitter_go.language, _GO),
    "rust": (tree_sitter_rust.language, _RUST),
    "c": (tree_sitter_c.language, _C),
    "cpp": (tree_sitter_cpp.language, _C + _CPP),
    "java": (tree_sitter_java.language, _JAVA),
}


@functools.cache
def loaded(name: str) -> tuple[tree_sitter.Language, tree_sitter.Query]:
    """Of the language of that name.  Loading one costs milliseconds, and memory: only those that are met."""
    language, query = _GRAMMARS[name]
    grammar = tree_sitter.Language(language())
    return grammar, tree_sitter.Query(grammar, query)
