"""Operations of `documents`, a module for each family."""
