"""Tools and resources that show the index: `index`, `navigate`, `inspect`, `synthesis://…`."""
