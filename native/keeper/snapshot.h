// The uninterrupted sequences: pause, save, go on. What stays paused is told by MARKER (main.c).
#ifndef CLOCHE_KEEPER_SNAPSHOT_H
#define CLOCHE_KEEPER_SNAPSHOT_H

// Each answers the exit code.
int checkpoint(int argc, char **argv);
int snapshot(int argc, char **argv);
int pause_command(const char *socket_path, const char *marker);
int resume(const char *socket_path, const char *marker);
int save(const char *socket_path, const char *image_dir);

#endif
