"""Operations of the front: those that it serves itself, and the models over HTTP."""
