// What the host needs of Linux that Node cannot do: a parent for a machine's processes that outlives the service, and
// the one uninterrupted sequence of a live snapshot. Static, no dependencies; compiled at set-up.
//
//   keeper keep PID_FILE EXIT_FILE OUT_FILE -- CMD...
//       Runs CMD (runsc create) and answers its exit code, while a copy of itself, named in PID_FILE, stays in the
//       background as subreaper of what CMD leaves behind. When a child of the machine ends later, EXIT_FILE appears
//       with "PID STATUS\n" (wait status), the others get 2 s and are killed, and the keeper ends: no zombie stays,
//       and runsc never has to poll for its gofer.
//   keeper run OUT_FILE -- CMD...
//       Runs CMD and answers its exit code.
//   keeper checkpoint SOCKET MOUNT_POINT DISK CLONE MARKER
//       pause; sync MOUNT_POINT and reflink DISK to CLONE; resume. Prints JSON.
//   keeper snapshot SOCKET IMAGE_DIR MOUNT_POINT DISK CLONE MARKER [--stop] [--template]
//       The same, with the memory saved into IMAGE_DIR at the same instant.
//       --stop: does not resume, and everything is durable when it answers. On failure the machine goes on.
//       --template: pages of zeros are left out, which takes longer: for what is saved once and read into every machine.
//       Of both: MARKER exists, locked, while this runs, and stays, unlocked, where the machine stays paused.
//   keeper resume SOCKET MARKER
//       Waits for a snapshot under way, then resumes where MARKER says that the machine is paused. (The sentry does
//       not tell whether it is paused, and dies of a resume too many.)
//   keeper pause SOCKET MARKER
//       Pauses. MARKER stays, unlocked, until `resume`; where it is there before, this fails and does nothing.
//   keeper save SOCKET IMAGE_DIR
//       The memory alone, of a machine without a disk.
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
