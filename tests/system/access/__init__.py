"""Who may do what: tokens, users, roots, approvals."""
