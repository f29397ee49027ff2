(function_definition name: (word) @name) @function
(command name: (command_name (word) @call))
(command name: (command_name (word) @load) . argument: [(word) (string) (raw_string) (concatenation)] @import
    (#any-of? @load "source" "."))
