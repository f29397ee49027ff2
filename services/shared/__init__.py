"""What several services use: texts, times, models, files, and what keeps a search collection up to date."""
