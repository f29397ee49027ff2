(class_declaration name: (identifier) @name) @class
(class_heritage [(identifier) (member_expression)] @base)
