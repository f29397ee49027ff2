"""Operations of `transcripts`, a module for each family."""
