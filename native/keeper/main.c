/*
 * The keeper does two things that Node cannot: it is a parent for a machine's processes that outlives the service, and it
 * runs a live snapshot as one uninterrupted sequence. Static, no dependencies; compiled at set-up.
 *
 *   keeper keep PID_FILE EXIT_FILE OUT_FILE -- CMD...
 *       Runs CMD (runsc create) and exits with its exit code. A copy of the keeper, whose pid is in PID_FILE, stays in
 *       the background as subreaper of the processes that CMD leaves. When the first of these ends, the others get 2 s,
 *       then are killed. EXIT_FILE appears with "PID STATUS\n" (wait status), and the keeper ends once all are reaped:
 *       no zombie stays, and runsc never has to poll for its gofer.
 *   keeper run OUT_FILE -- CMD...
 *       Runs CMD and exits with its exit code.
 *   keeper checkpoint SOCKET MOUNT_POINT DISK CLONE MARKER
 *       Pauses, syncs MOUNT_POINT, reflinks DISK to CLONE, resumes. Prints JSON.
 *   keeper snapshot SOCKET IMAGE_DIR MOUNT_POINT DISK CLONE MARKER [--stop] [--template]
 *       The same, and saves the memory into IMAGE_DIR at the same instant.
 *       --stop: does not resume, and everything is durable on exit. On failure the machine is resumed.
 *       --template: leaves out pages of zeros. This takes longer, so it is for images saved once and restored often.
 *       Both commands: MARKER exists, locked, while they run. It stays, unlocked, if the machine stays paused.
 *   keeper resume SOCKET MARKER
 *       Waits for a snapshot under way, then resumes the machine if MARKER exists. (The sentry does not tell whether
 *       it is paused, and dies if it is resumed once too often.)
 *   keeper pause SOCKET MARKER
 *       Pauses. MARKER stays, unlocked, until `resume`. If MARKER exists already, fails and does nothing.
 *   keeper save SOCKET IMAGE_DIR
 *       Saves only the memory, without pages of zeros, of a machine without a disk. The machine stays paused.
 */
#include <errno.h>
#include <string.h>

#include "parent.h"
#include "report.h"
#include "snapshot.h"

int main(int argc, char **argv) {
  errno = 0;
  if (argc < 2) return complain("which command?"), 2;
  const char *command = argv[1];
  argc -= 2, argv += 2;
  if (!strcmp(command, "keep")) return keep(argc, argv);
  if (!strcmp(command, "run")) return run(argc, argv);
  if (!strcmp(command, "snapshot")) return snapshot(argc, argv);
  if (!strcmp(command, "checkpoint")) return checkpoint(argc, argv);
  if (!strcmp(command, "resume") && argc == 2) return resume(argv[0], argv[1]);
  if (!strcmp(command, "pause") && argc == 2) return pause_command(argv[0], argv[1]);
  if (!strcmp(command, "save") && argc == 2) return save(argv[0], argv[1]);
  return complain("unknown command %s", command), 2;
}
