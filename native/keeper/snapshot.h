/* The uninterrupted sequences: pause, save, resume. MARKER (main.c) notes that a machine stays paused. */
#ifndef CLOCHE_KEEPER_SNAPSHOT_H
#define CLOCHE_KEEPER_SNAPSHOT_H

/* Each returns the exit code. */
int checkpoint(int argc, char **argv);
int snapshot(int argc, char **argv);
int pause_command(const char *socket_path, const char *marker);
int resume(const char *socket_path, const char *marker);
int save(const char *socket_path, const char *image_dir);

#endif
