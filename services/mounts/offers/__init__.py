"""What servers offer: their definitions, how they are checked, stored, named and shown."""
