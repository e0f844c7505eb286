/** How the gateway's messages print: snake_case, and every field always there (spec/contract.md, Both surfaces). */
export const gatewayJsonOptions = {
  useProtoFieldName: true,
  alwaysEmitImplicit: true,
  ignoreUnknownFields: true,
} as const;
