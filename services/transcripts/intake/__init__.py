"""How conversations come in: posted, recorded or imported, read and masked."""
