"""Operations of `files`, a module for each family."""
