#define _GNU_SOURCE
#include "state-pieces.h"

#include <endian.h>
#include <stdint.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

int join_pieces(int state) {
  enum { magic = 8, length = 8, hash = 32, piece_header = 4 };
  off_t end = lseek(state, 0, SEEK_END);
  if (end <= magic + length + hash + piece_header || end > UINT32_MAX) return 0;
  int failed = 0;
  size_t size = (size_t)end;
  unsigned char *bytes = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_PRIVATE, state, 0);
  if (bytes == MAP_FAILED) return 0;
  uint64_t metadata;
  memcpy(&metadata, bytes + magic, sizeof metadata);
  metadata = be64toh(metadata);
  static const char uncompressed[] = "\"compression\":\"none\"";
  size_t first = magic + length + (metadata < size ? (size_t)metadata : size) + hash;
  if (!memcmp(bytes, "gVisorSF", magic) && first + piece_header < size &&
      memmem(bytes, first, uncompressed, sizeof uncompressed - 1)) {
    size_t from = first, to = first + piece_header;
    while (from + piece_header <= size) {
      uint32_t piece;
      memcpy(&piece, bytes + from, sizeof piece);
      piece = be32toh(piece);
      from += piece_header;
      if (piece > size - from) break;
      memmove(bytes + to, bytes + from, piece);
      from += piece, to += piece;
    }
    uint32_t whole = htobe32((uint32_t)(to - first - piece_header));
    memcpy(bytes + first, &whole, sizeof whole);
    if (from == size && (pwrite(state, bytes, to, 0) != (ssize_t)to || ftruncate(state, (off_t)to)))
      failed = -1;
  }
  munmap(bytes, size);
  return failed;
}
