import { describe, expect, it } from "vitest";
import { isCanonicalBase64url, tokenParts } from "./token-form.ts";

const alphabet = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_";

describe("canonical base64url", () => {
  it("is exactly what encoding what it decodes to gives again", () => {
    const texts = [...alphabet].flatMap((last) => ["A", "AA", "AAA", "AAAA"].map((text) => text + last));
    for (const text of [...texts, "", "A=", "QQ==", "QQ=", "Q+", "Q/", "Q Q", "QQ\n", "Ä"])
      expect(isCanonicalBase64url(text), text).toBe(
        text !== "" && Buffer.from(text, "base64url").toString("base64url") === text,
      );
  });
});

describe("the parts of a token", () => {
  it("are three, none empty", () => {
    expect(tokenParts("QQ.QUI.QUJD")).toEqual(["QQ", "QUI", "QUJD"]);
    for (const wrong of [
      "",
      "QQ",
      "QQ.QQ",
      "QQ.QQ.",
      ".QQ.QQ",
      "QQ..QQ",
      "QQ.QQ.QQ.QQ",
      "QQ.QQ.QR",
      "QQ.QQ.QQ==",
    ])
      expect(() => tokenParts(wrong), wrong).toThrow("a token");
  });
});
