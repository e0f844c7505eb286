/* Network namespaces, links of slots and their elements in nft sets, by netlink: like `ip` and `nft`, without starting them. */
#include "cloche-sys.h"

#include <arpa/inet.h>
#include <endian.h>
#include <errno.h>
#include <fcntl.h>
#include <linux/netfilter.h>
#include <linux/netfilter/nf_tables.h>
#include <linux/netfilter/nfnetlink.h>
#include <linux/netlink.h>
#include <linux/rtnetlink.h>
#include <linux/veth.h>
#include <net/if.h>
#include <sched.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mount.h>
#include <sys/socket.h>
#include <sys/vfs.h>
#include <unistd.h>

#ifndef NSFS_MAGIC
#define NSFS_MAGIC 0x6e736673
#endif
#define MAC_BYTES 6
/* Size of interface names in nft sets. */
#define NAME_BYTES 16

struct request {
  struct nlmsghdr header;
  char body[1024];
};

/* `fixed`: the struct after the header, which every message of that type has. */
static void begin(struct request *request, uint16_t type, uint16_t flags, const void *fixed, size_t length) {
  memset(request, 0, sizeof *request);
  request->header.nlmsg_type = type;
  request->header.nlmsg_flags = NLM_F_REQUEST | NLM_F_ACK | flags;
  memcpy(request->body, fixed, length);
  request->header.nlmsg_len = NLMSG_LENGTH(length);
}

static void *end_of(struct request *request) { return (char *)request + NLMSG_ALIGN(request->header.nlmsg_len); }

static void add_bytes(struct request *request, const void *bytes, size_t length) {
  if (NLMSG_ALIGN(request->header.nlmsg_len) + length > sizeof *request) abort(); /* All content is ours, and fits. */
  memcpy(end_of(request), bytes, length);
  request->header.nlmsg_len = NLMSG_ALIGN(request->header.nlmsg_len) + (uint32_t)length;
}

static struct nlattr *open_attribute(struct request *request, uint16_t type) {
  struct nlattr *attribute = end_of(request);
  struct nlattr head = {.nla_type = type};
  add_bytes(request, &head, sizeof head);
  return attribute;
}

static void close_attribute(struct request *request, struct nlattr *attribute) {
  attribute->nla_len = (uint16_t)((char *)request + request->header.nlmsg_len - (char *)attribute);
}

static void add_attribute(struct request *request, uint16_t type, const void *bytes, size_t length) {
  struct nlattr *attribute = open_attribute(request, type);
  add_bytes(request, bytes, length);
  close_attribute(request, attribute);
}

static void add_text(struct request *request, uint16_t type, const char *text) { add_attribute(request, type, text, strlen(text) + 1); }

/* Sends a request. 0, or the errno of the refusal. Does not wait for a second datagram, the acknowledgement after an answer. */
static int ask(int protocol, struct request *request) {
  struct sockaddr_nl kernel = {.nl_family = AF_NETLINK};
  union {
    struct nlmsghdr header;
    char bytes[8192];
  } reply;
  int fd = socket(AF_NETLINK, SOCK_RAW | SOCK_CLOEXEC, protocol);
  if (fd < 0) return errno;
  ssize_t size = sendto(fd, request, request->header.nlmsg_len, 0, (struct sockaddr *)&kernel, sizeof kernel);
  if (size >= 0)
    while ((size = recv(fd, &reply, sizeof reply, 0)) < 0 && errno == EINTR) continue;
  int error = size < 0 ? errno : 0;
  close(fd);
  if (error) return error;
  if ((size_t)size < NLMSG_LENGTH(0)) return EPROTO;
  if (reply.header.nlmsg_type != NLMSG_ERROR) return 0;
  if ((size_t)size < NLMSG_LENGTH(sizeof(struct nlmsgerr))) return EPROTO;
  return -((struct nlmsgerr *)NLMSG_DATA(&reply.header))->error;
}

/* Moves this thread into the namespace; it serves only this request. */
static int enter(const char *namespace) {
  int fd = open(namespace, O_RDONLY | O_CLOEXEC);
  if (fd < 0) return errno;
  int error = setns(fd, CLONE_NEWNET) == 0 ? 0 : errno;
  close(fd);
  return error;
}

static int read_mac(const char *text, unsigned char mac[MAC_BYTES]) {
  int used = 0;
  int read = sscanf(text, "%hhx:%hhx:%hhx:%hhx:%hhx:%hhx%n", mac, mac + 1, mac + 2, mac + 3, mac + 4, mac + 5, &used);
  return read == MAC_BYTES && text[used] == 0 ? 0 : EINVAL;
}

/* Parses "10.0.0.1/30". */
static int read_address(const char *text, struct in_addr *address, unsigned char *prefix) {
  char copy[32];
  snprintf(copy, sizeof copy, "%s", text);
  char *slash = strchr(copy, '/');
  if (!slash) return EINVAL;
  *slash = 0;
  *prefix = (unsigned char)atoi(slash + 1);
  return *prefix > 0 && *prefix <= 32 && inet_pton(AF_INET, copy, address) == 1 ? 0 : EINVAL;
}

static int set_up(const char *interface) {
  struct request request;
  struct ifinfomsg link = {.ifi_flags = IFF_UP, .ifi_change = IFF_UP};
  begin(&request, RTM_NEWLINK, 0, &link, sizeof link);
  add_text(&request, IFLA_IFNAME, interface);
  return ask(NETLINK_ROUTE, &request);
}

static int set_address(const char *interface, const char *text) {
  struct request request;
  struct in_addr address;
  struct ifaddrmsg to = {.ifa_family = AF_INET, .ifa_index = if_nametoindex(interface)};
  if (to.ifa_index == 0) return ENODEV;
  int error = read_address(text, &address, &to.ifa_prefixlen);
  if (error) return error;
  begin(&request, RTM_NEWADDR, NLM_F_CREATE | NLM_F_REPLACE, &to, sizeof to);
  add_attribute(&request, IFA_LOCAL, &address, sizeof address);
  add_attribute(&request, IFA_ADDRESS, &address, sizeof address);
  return ask(NETLINK_ROUTE, &request);
}

static int set_gateway(const char *interface, const char *text) {
  struct request request;
  struct in_addr gateway;
  uint32_t index = if_nametoindex(interface);
  struct rtmsg route = {.rtm_family = AF_INET,
                        .rtm_table = RT_TABLE_MAIN,
                        .rtm_protocol = RTPROT_BOOT,
                        .rtm_scope = RT_SCOPE_UNIVERSE,
                        .rtm_type = RTN_UNICAST};
  if (index == 0) return ENODEV;
  if (inet_pton(AF_INET, text, &gateway) != 1) return EINVAL;
  begin(&request, RTM_NEWROUTE, NLM_F_CREATE | NLM_F_REPLACE, &route, sizeof route);
  add_attribute(&request, RTA_GATEWAY, &gateway, sizeof gateway);
  add_attribute(&request, RTA_OIF, &index, sizeof index);
  return ask(NETLINK_ROUTE, &request);
}

struct end {
  const char *name, *mac;
};

/* Makes a veth pair: `near` here, `far` in `namespace`. */
static int add_pair(struct end near, struct end far, const char *namespace) {
  struct request request;
  struct ifinfomsg link = {0};
  unsigned char near_mac[MAC_BYTES], far_mac[MAC_BYTES];
  if (read_mac(near.mac, near_mac) || read_mac(far.mac, far_mac)) return EINVAL;
  int fd = open(namespace, O_RDONLY | O_CLOEXEC);
  if (fd < 0) return errno;
  begin(&request, RTM_NEWLINK, NLM_F_CREATE | NLM_F_EXCL, &link, sizeof link);
  add_text(&request, IFLA_IFNAME, near.name);
  add_attribute(&request, IFLA_ADDRESS, near_mac, MAC_BYTES);
  struct nlattr *info = open_attribute(&request, IFLA_LINKINFO);
  add_text(&request, IFLA_INFO_KIND, "veth");
  struct nlattr *data = open_attribute(&request, IFLA_INFO_DATA);
  struct nlattr *peer = open_attribute(&request, VETH_INFO_PEER);
  add_bytes(&request, &link, sizeof link);
  add_text(&request, IFLA_IFNAME, far.name);
  add_attribute(&request, IFLA_ADDRESS, far_mac, MAC_BYTES);
  add_attribute(&request, IFLA_NET_NS_FD, &fd, sizeof fd);
  close_attribute(&request, peer);
  close_attribute(&request, data);
  close_attribute(&request, info);
  int error = ask(NETLINK_ROUTE, &request);
  close(fd);
  return error;
}

/*
 * Makes the pair and sets up the router's end. Arguments: the router's namespace, interface, hardware address and address with
 * prefix; then the slot's. The slot's namespace must exist; slot_prepare sets up its end.
 */
int slot_link(struct answer *answer, char **of) {
  int error = enter(of[0]);
  if (error) return fail(answer, error, "entering %s", of[0]);
  struct end router = {of[1], of[2]}, slot = {of[5], of[6]};
  if ((error = add_pair(router, slot, of[4]))) return fail(answer, error, "making the link %s", of[1]);
  if ((error = set_address(of[1], of[3]))) return fail(answer, error, "giving %s its address", of[1]);
  if ((error = set_up(of[1]))) return fail(answer, error, "setting %s up", of[1]);
  return done(answer, "ok");
}

/* Sandboxes use only IPv4. A kernel without IPv6 has no such file. */
static void set_ipv6(const char *interface, bool on) {
  char path[64];
  snprintf(path, sizeof path, "/proc/sys/net/ipv6/conf/%s/disable_ipv6", interface);
  int fd = open(path, O_WRONLY | O_CLOEXEC);
  if (fd < 0) return;
  if (write(fd, on ? "0" : "1", 1) != 1) fprintf(stderr, "cloche-sys: %s: %s\n", path, strerror(errno));
  close(fd);
}

/*
 * Sets up the slot's end: its address, and the route through `gateway`. Repeatable, also after they were removed. The loopback
 * gets ::1 too: `localhost` means both addresses, and programs that listen there ask for both.
 */
int slot_prepare(struct answer *answer, const char *namespace, const char *interface, const char *address, const char *gateway) {
  int error = enter(namespace);
  if (error) return fail(answer, error, "entering %s", namespace);
  set_ipv6("lo", true);
  if ((error = set_up("lo"))) return fail(answer, error, "setting lo up");
  if ((error = set_up(interface))) return fail(answer, error, "setting %s up", interface);
  if ((error = set_address(interface, address))) return fail(answer, error, "giving %s its address", interface);
  if ((error = set_gateway(interface, gateway))) return fail(answer, error, "default route through %s", gateway);
  return done(answer, "ok");
}

struct element {
  const char *set, *interface;
  /* "": the key has no address. */
  const char *address;
  /* Target of a verdict map. "": the set is no such map. */
  const char *chain;
  /* Value of a map of marks, in decimal. "": the set is no such map. */
  const char *mark;
  /* "first-last", after the address. "": the key has no ports. */
  const char *ports;
  /* Seconds after which the kernel removes the element. "": never. */
  const char *timeout;
};

/* Writes the body of a message about one element. */
static int add_element(struct request *request, const char *table, struct element of) {
  struct {
    char interface[NAME_BYTES];
    struct in_addr address;
    /* A part of a key takes whole words. */
    uint16_t port, padding;
  } key = {0}, end;
  size_t length = NAME_BYTES;
  if (strlen(of.interface) >= NAME_BYTES) return EINVAL;
  strcpy(key.interface, of.interface);
  if (*of.address) {
    if (inet_pton(AF_INET, of.address, &key.address) != 1) return EINVAL;
    length = offsetof(typeof(key), port);
  }
  memcpy(&end, &key, sizeof end);
  if (*of.ports) {
    if (sscanf(of.ports, "%hu-%hu", &key.port, &end.port) != 2) return EINVAL;
    key.port = htons(key.port);
    end.port = htons(end.port);
    length = sizeof key;
  }
  add_text(request, NFTA_SET_ELEM_LIST_TABLE, table);
  add_text(request, NFTA_SET_ELEM_LIST_SET, of.set);
  struct nlattr *list = open_attribute(request, NLA_F_NESTED | NFTA_SET_ELEM_LIST_ELEMENTS);
  struct nlattr *element = open_attribute(request, NLA_F_NESTED | NFTA_LIST_ELEM);
  struct nlattr *value = open_attribute(request, NLA_F_NESTED | NFTA_SET_ELEM_KEY);
  add_attribute(request, NFTA_DATA_VALUE, &key, length);
  close_attribute(request, value);
  if (*of.ports) {
    struct nlattr *last = open_attribute(request, NLA_F_NESTED | NFTA_SET_ELEM_KEY_END);
    add_attribute(request, NFTA_DATA_VALUE, &end, length);
    close_attribute(request, last);
  }
  if (*of.timeout) {
    uint64_t ms = htobe64(strtoull(of.timeout, NULL, 10) * 1000);
    add_attribute(request, NFTA_SET_ELEM_TIMEOUT, &ms, sizeof ms);
  }
  if (*of.chain) {
    uint32_t code = htonl((uint32_t)NFT_GOTO);
    struct nlattr *data = open_attribute(request, NLA_F_NESTED | NFTA_SET_ELEM_DATA);
    struct nlattr *verdict = open_attribute(request, NLA_F_NESTED | NFTA_DATA_VERDICT);
    add_attribute(request, NFTA_VERDICT_CODE, &code, sizeof code);
    add_text(request, NFTA_VERDICT_CHAIN, of.chain);
    close_attribute(request, verdict);
    close_attribute(request, data);
  }
  if (*of.mark) {
    uint32_t mark = (uint32_t)strtoul(of.mark, NULL, 10);
    struct nlattr *data = open_attribute(request, NLA_F_NESTED | NFTA_SET_ELEM_DATA);
    add_attribute(request, NFTA_DATA_VALUE, &mark, sizeof mark);
    close_attribute(request, data);
  }
  close_attribute(request, element);
  close_attribute(request, list);
  return 0;
}

/* 0: the set has the interface. */
static int in_set(const char *table, const char *set, const char *interface) {
  struct request request;
  struct nfgenmsg family = {.nfgen_family = NFPROTO_INET, .version = NFNETLINK_V0};
  begin(&request, NFNL_SUBSYS_NFTABLES << 8 | NFT_MSG_GETSETELEM, 0, &family, sizeof family);
  int error = add_element(&request, table, (struct element){set, interface, "", "", "", "", ""});
  return error ? error : ask(NETLINK_NETFILTER, &request);
}

struct batch {
  size_t used;
  union {
    struct nlmsghdr header;
    char bytes[16384];
  };
};

static int append(struct batch *batch, const struct request *request) {
  size_t length = NLMSG_ALIGN(request->header.nlmsg_len);
  if (batch->used + length > sizeof batch->bytes) return E2BIG;
  memcpy(batch->bytes + batch->used, request, length);
  batch->used += length;
  return 0;
}

static int append_edge(struct batch *batch, uint16_t type) {
  struct request request;
  struct nfgenmsg edge = {.version = NFNETLINK_V0, .res_id = htons(NFNL_SUBSYS_NFTABLES)};
  begin(&request, type, 0, &edge, sizeof edge);
  request.header.nlmsg_flags = NLM_F_REQUEST;
  return append(batch, &request);
}

/* The kernel has processed the whole batch when send returns. It answers each element; the first refusal is returned. */
static int commit(const struct batch *batch) {
  struct sockaddr_nl kernel = {.nl_family = AF_NETLINK};
  union {
    struct nlmsghdr header;
    char bytes[8192];
  } reply;
  int answers = 0, error = 0;
  int fd = socket(AF_NETLINK, SOCK_RAW | SOCK_CLOEXEC, NETLINK_NETFILTER);
  if (fd < 0) return errno;
  if (sendto(fd, batch->bytes, batch->used, 0, (struct sockaddr *)&kernel, sizeof kernel) < 0) error = errno;
  while (!error) {
    ssize_t size = recv(fd, &reply, sizeof reply, MSG_DONTWAIT);
    if (size < 0 && errno == EINTR) continue;
    if (size < 0 && errno == EAGAIN) break;
    if (size < 0) error = errno;
    else if ((size_t)size < NLMSG_LENGTH(sizeof(struct nlmsgerr)) || reply.header.nlmsg_type != NLMSG_ERROR) error = EPROTO;
    else error = -((struct nlmsgerr *)NLMSG_DATA(&reply.header))->error;
    answers++;
  }
  close(fd);
  return error || answers > 0 ? error : EPROTO;
}

/*
 * Changes elements in one transaction, like `nft -f`. Arguments: the router's namespace, the inet table, and for each change "add" or
 * "delete", set, interface, address, chain, mark, ports, timeout. An existing element may be added again; a missing one cannot be deleted.
 */
int set_elements(struct answer *answer, char **arguments, int count) {
  struct batch batch = {.used = 0};
  if (count % 8 != 2) return fail(answer, EINVAL, "%d arguments", count);
  int error = enter(arguments[0]);
  if (error) return fail(answer, error, "entering %s", arguments[0]);
  error = append_edge(&batch, NFNL_MSG_BATCH_BEGIN);
  for (char **one = arguments + 2; !error && one < arguments + count; one += 8) {
    struct request request;
    struct nfgenmsg family = {.nfgen_family = NFPROTO_INET, .version = NFNETLINK_V0};
    int adds = strcmp(one[0], "add") == 0;
    uint16_t type = adds ? NFT_MSG_NEWSETELEM : NFT_MSG_DELSETELEM;
    begin(&request, NFNL_SUBSYS_NFTABLES << 8 | type, adds ? NLM_F_CREATE : 0, &family, sizeof family);
    error = add_element(&request, arguments[1], (struct element){one[1], one[2], one[3], one[4], one[5], one[6], one[7]});
    if (!error) error = append(&batch, &request);
  }
  if (!error) error = append_edge(&batch, NFNL_MSG_BATCH_END);
  if (!error) error = commit(&batch);
  return error ? fail(answer, error, "changing sets of %s", arguments[1]) : done(answer, "ok");
}

/*
 * Removes the link, the only way to and from the slot. Then answers "noted" if `set` of the inet table `table` has the interface: no
 * later packet can add it. Repeatable; succeeds without such a link or router.
 */
int slot_unlink(struct answer *answer, const char *router, const char *interface, const char *table, const char *set) {
  struct request request;
  struct ifinfomsg link = {0};
  int error = enter(router);
  if (error == ENOENT || error == EINVAL) return done(answer, "clean");
  if (error) return fail(answer, error, "entering %s", router);
  begin(&request, RTM_DELLINK, 0, &link, sizeof link);
  add_text(&request, IFLA_IFNAME, interface);
  error = ask(NETLINK_ROUTE, &request);
  if (error && error != ENODEV) return fail(answer, error, "removing the link %s", interface);
  error = in_set(table, set, interface);
  if (error && error != ENOENT) return fail(answer, error, "looking for %s in %s", interface, set);
  return done(answer, error ? "clean" : "noted");
}

/* Makes a network namespace without IPv6, kept by a bind mount at `path` as by `ip netns`. Repeatable. */
int netns_add(struct answer *answer, const char *path) {
  struct statfs status;
  if (statfs(path, &status) == 0 && status.f_type == NSFS_MAGIC) return done(answer, "exists");
  int fd = open(path, O_RDONLY | O_CREAT | O_CLOEXEC, 0444);
  if (fd < 0) return fail(answer, errno, "creating %s", path);
  close(fd);
  /* Only this thread moves into the new namespace; it ends with the request. */
  if (unshare(CLONE_NEWNET) != 0) return fail(answer, errno, "making a network namespace");
  set_ipv6("all", false);
  set_ipv6("default", false);
  if (mount("/proc/thread-self/ns/net", path, "none", MS_BIND, NULL) != 0)
    return fail(answer, errno, "keeping the network namespace at %s", path);
  return done(answer, "made");
}

int netns_delete(struct answer *answer, const char *path) {
  while (umount2(path, MNT_DETACH | UMOUNT_NOFOLLOW) == 0) continue;
  if (errno != EINVAL && errno != ENOENT) return fail(answer, errno, "unmounting %s", path);
  if (unlink(path) != 0 && errno != ENOENT) return fail(answer, errno, "removing %s", path);
  return done(answer, "ok");
}
