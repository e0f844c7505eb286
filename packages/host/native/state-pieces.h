#ifndef CLOCHE_STATE_PIECES_H
#define CLOCHE_STATE_PIECES_H

// The sentry writes its state in pieces of a byte or a few, each behind its length, and reads it so: 230,000 pieces, and
// twice as many reads. One piece takes half as many. What does not look as expected stays as it is.
//   "gVisorSF", length of the metadata (8 bytes), metadata (JSON), its hash (32 bytes), then pieces: length (4), bytes
// Called where nobody else has the file open. -1, with errno: the file is damaged, since it could not be written.
int join_pieces(int state);

#endif
