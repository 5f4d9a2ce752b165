"""Operations of each kind of sublayer, as pieces of a tape."""
