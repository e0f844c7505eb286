/**
 * Credentials of S3: AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, with AWS_SESSION_TOKEN where they are temporary; or a profile
 * (AWS_PROFILE, `default`) of the file AWS_SHARED_CREDENTIALS_FILE. The file is read again while the service runs, so that whatever renews
 * temporary credentials only has to replace it.
 */
import { readFileSync } from "node:fs";

export interface S3Credentials {
  accessKeyId: string;
  secretAccessKey: string;
  /** Absent: the keys are not temporary. */
  sessionToken?: string;
}

const readAgainMs = 5_000;

/** Answers the present credentials at each call. Throws an Error that names what is missing. */
export function s3Credentials(env: NodeJS.ProcessEnv, nowMs: () => number = Date.now): () => S3Credentials {
  const given = credentialsOf({
    aws_access_key_id: env["AWS_ACCESS_KEY_ID"],
    aws_secret_access_key: env["AWS_SECRET_ACCESS_KEY"],
    aws_session_token: env["AWS_SESSION_TOKEN"],
  });
  if (given !== undefined) return () => given;
  const path = env["AWS_SHARED_CREDENTIALS_FILE"];
  if (!path) {
    throw new Error(
      "blob_url is S3, which needs AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY in the environment, or AWS_SHARED_CREDENTIALS_FILE",
    );
  }
  const profile = env["AWS_PROFILE"] || "default";
  let known = fromFile(path, profile);
  let readAtMs = nowMs();
  return () => {
    if (nowMs() - readAtMs < readAgainMs) return known;
    readAtMs = nowMs();
    try {
      known = fromFile(path, profile);
    } catch {
      // It may be in the middle of being replaced: the old ones may still hold, and the next read is soon.
    }
    return known;
  };
}

function fromFile(path: string, profile: string): S3Credentials {
  const found = credentialsOf(fieldsOf(readFileSync(path, "utf8"), profile));
  if (found !== undefined) return found;
  throw new Error(
    `${path} (AWS_SHARED_CREDENTIALS_FILE) has no aws_access_key_id and aws_secret_access_key in its profile [${profile}]`,
  );
}

function credentialsOf(fields: Partial<Record<string, string>>): S3Credentials | undefined {
  const accessKeyId = fields["aws_access_key_id"];
  const secretAccessKey = fields["aws_secret_access_key"];
  const sessionToken = fields["aws_session_token"];
  if (!accessKeyId || !secretAccessKey) return undefined;
  return { accessKeyId, secretAccessKey, ...(sessionToken ? { sessionToken } : {}) };
}

/** The fields of a section of an INI file. */
function fieldsOf(text: string, section: string): Record<string, string> {
  const fields: Record<string, string> = {};
  let isHere = false;
  for (const line of text.split(/\r?\n/)) {
    const head = /^\s*\[([^\]]*)\]/.exec(line)?.[1];
    if (head !== undefined) isHere = head.trim() === section;
    const [, name, value] = /^\s*([a-z_]+)\s*=\s*(.*?)\s*$/i.exec(line) ?? [];
    if (isHere && name !== undefined && value !== undefined) fields[name.toLowerCase()] = value;
  }
  return fields;
}
