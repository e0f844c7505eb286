/** The longest time that a timer of Node can wait. A longer one fires at once. */
export const timerMaxMs = 2 ** 31 - 1;

const connectTimeout = "connect-timeout-ms";
const grpcTimeout = "grpc-timeout";
const unitMs: Readonly<Record<string, number>> = { H: 3_600_000, M: 60_000, S: 1_000 };

/**
 * Shortens the timeout of a Connect, gRPC or gRPC-Web call to what a timer can wait. Connect sets a timer to what the
 * headers say, up to 99,999,999 hours; the call would time out at once. Values in another form are Connect's to refuse.
 */
export function boundCallTimeout(headers: Record<string, string | string[] | undefined>): void {
  const connect = headers[connectTimeout];
  if (typeof connect === "string" && /^\d{1,10}$/.test(connect) && Number(connect) > timerMaxMs)
    headers[connectTimeout] = String(timerMaxMs);
  const [, count, unit = ""] = /^(\d{1,8})([HMS])$/.exec(String(headers[grpcTimeout])) ?? [];
  if (Number(count) * (unitMs[unit] ?? 0) > timerMaxMs)
    headers[grpcTimeout] = `${Math.floor(timerMaxMs / 1_000)}S`;
}
