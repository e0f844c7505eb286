#include "sysv.h"

#include <fcntl.h>
#include <sched.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <sys/ipc.h>
#include <sys/msg.h>
#include <unistd.h>

#define WORTH_REMOVING (32ull << 20)
/* Kernel memory of a message beside its bytes. */
#define MESSAGE_BYTES 160
/* gVisor has no index of queues: their ids count up, so each is tried. */
#define IDS_MAX (1 << 20)
#define SENDERS_MAX 64

struct sender {
  pid_t pid;
  uint64_t bytes;
};

static void add_to(struct sender senders[SENDERS_MAX], const struct msqid_ds *queue) {
  for (int i = 0; i < SENDERS_MAX; i++) {
    if (senders[i].bytes > 0 && senders[i].pid != queue->msg_lspid) continue;
    senders[i].pid = queue->msg_lspid;
    senders[i].bytes += queue->__msg_cbytes + queue->msg_qnum * MESSAGE_BYTES + 1;
    return;
  }
}

static pid_t largest_sender(int queues) {
  struct sender senders[SENDERS_MAX] = {0}, *most = senders;
  for (int id = 0; queues > 0 && id < IDS_MAX; id++) {
    struct msqid_ds queue;
    if (msgctl(id, MSG_STAT, &queue) < 0) continue;
    add_to(senders, &queue);
    queues--;
  }
  for (int i = 1; i < SENDERS_MAX; i++)
    if (senders[i].bytes > most->bytes) most = &senders[i];
  return most->pid;
}

static void remove_queues(void) {
  struct msginfo info;
  if (msgctl(0, MSG_INFO, (struct msqid_ds *)&info) < 0) return;
  uint64_t held = (uint64_t)(unsigned)info.msgtql + (uint64_t)(unsigned)info.msgmap * MESSAGE_BYTES;
  if (held < WORTH_REMOVING) return;
  pid_t sender = largest_sender(info.msgpool);
  for (int id = 0, left = info.msgpool; left > 0 && id < IDS_MAX; id++) {
    struct msqid_ds queue;
    if (msgctl(id, MSG_STAT, &queue) < 0) continue;
    if (queue.msg_lspid == sender) msgctl(id, IPC_RMID, NULL);
    left--;
  }
}

void sysv_remove(int proc_fd, pid_t process) {
  char path[32];
  snprintf(path, sizeof path, "%d/ns/ipc", process);
  int its = openat(proc_fd, path, O_RDONLY | O_CLOEXEC), own = openat(proc_fd, "thread-self/ns/ipc", O_RDONLY | O_CLOEXEC);
  bool moved = its >= 0 && own >= 0 && setns(its, CLONE_NEWIPC) == 0;
  remove_queues();
  if (moved && setns(own, CLONE_NEWIPC) != 0) _exit(70);
  if (its >= 0) close(its);
  if (own >= 0) close(own);
}
