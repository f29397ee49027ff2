"""Operations of `documents` that no other service calls; `proto.ops.documents` has the others."""
