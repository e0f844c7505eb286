#include "tar-links.h"

#include <errno.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "tar.h"

static struct tar_link *links;
static size_t count, room, made;
/* Hash table from path to the index plus one of the newest link there; open addressing, at most half full. */
static uint32_t *table;
static size_t table_room;

static size_t slot_of(const char *path) {
  uint64_t hash = 14695981039346656037ull;
  for (const char *at = path; *at; at++) hash = (hash ^ (uint8_t)*at) * 1099511628211ull;
  size_t slot = hash & (table_room - 1);
  while (table[slot] && strcmp(links[table[slot] - 1].path, path) != 0) slot = (slot + 1) & (table_room - 1);
  return slot;
}

static void grow_table(void) {
  free(table);
  table_room = table_room ? table_room * 2 : 256;
  table = calloc(table_room, sizeof *table);
  if (!table) tar_failed(ENOMEM, "");
  for (size_t i = 0; i < count; i++) table[slot_of(links[i].path)] = (uint32_t)i + 1;
}

void tar_links_cancel(const char *path) {
  if (count == 0) return;
  uint32_t at = table[slot_of(path)];
  if (at) links[at - 1].cancelled = true;
}

void tar_links_add(struct tar_link link) {
  if (count == TAR_LINKS_MAX) tar_invalid("it has more than 1,000,000 links");
  tar_links_cancel(link.path);
  if (count == room) {
    room = room ? room * 2 : 64;
    links = realloc(links, room * sizeof *links);
    if (!links) tar_failed(ENOMEM, link.path);
  }
  if (2 * (count + 1) > table_room) grow_table();
  links[count] = link;
  table[slot_of(link.path)] = (uint32_t)++count;
}

const struct tar_link *tar_links_next(void) {
  while (made < count && links[made].cancelled) made++;
  return made < count ? &links[made++] : NULL;
}
