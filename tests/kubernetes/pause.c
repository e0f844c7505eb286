/* What holds a pod's namespaces: waits for its end, and collects orphans meanwhile. */
#include <signal.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>

static void end(int signal_number) {
  (void)signal_number;
  exit(0);
}

int main(void) {
  signal(SIGTERM, end);
  signal(SIGINT, end);
  for (;;)
    if (waitpid(-1, NULL, 0) < 0) pause();
}
