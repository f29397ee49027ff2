"""Operations of `knowledge`: notes, and changes to them."""
