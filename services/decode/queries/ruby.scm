(method name: (_) @name) @function
(singleton_method name: (_) @name) @function
(class name: [(constant) (scope_resolution)] @name) @class
(module name: [(constant) (scope_resolution)] @name) @module
(superclass [(constant) (scope_resolution)] @base)
(call receiver: (_)? @on method: [(identifier) (constant)] @call)
(call method: (identifier) @load arguments: (argument_list . (string) @import)
    (#any-of? @load "require" "require_relative" "load"))
