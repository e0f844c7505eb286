/** What owners are told of the loss of a host. */

/** For a SUSPENDED sandbox that is not durable. */
export const waitsForHost =
  "its host is lost, and what was suspended is only there: it can be resumed when that host is back";

/** Of one whose fork is asked for: its host is lost; does not answer; takes no new sandboxes. */
export const forkWaitsForHost =
  "its host is lost, and what was suspended is only there: it can be forked when that host is back";
export const forkWaitsForAnswer = "its host does not answer now; try again later";
export const forkWaitsForStorage =
  "its host takes no new sandboxes, and it is not in storage yet: fork it once it is durable";

export const lostWithHost = "its host was lost while it ran: it runs again if that host comes back with it";
export const lostWithoutCheckpoint =
  "its host was lost while it ran, and it has no checkpoint to restart from: it runs again if that host comes back with it";
export const lostWhileForked = "its host was lost while it was cloned";

export const restartedFrom = ({ id, createdAt }: { id: string; createdAt: string }): string =>
  `its host was lost while it ran: restarted from checkpoint ${id} of ${createdAt}; what came after that, and its memory, are lost`;
