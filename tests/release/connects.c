/* Records where a process connects: one line per call in the file CONNECTS_TO. By LD_PRELOAD.

    connect 127.0.0.1 29500
    lookup localhost

Addresses of other families than IPv4 and IPv6, such as Unix sockets, stay on this host and are not recorded. */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <netdb.h>
#include <netinet/in.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#define REAL(name) ((__typeof__(&name))dlsym(RTLD_NEXT, #name))

static void record(const char *line) {
    const char *path = getenv("CONNECTS_TO");
    int before = errno, handle = path ? open(path, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0666) : -1;
    if (handle >= 0) {
        if (write(handle, line, strlen(line)) < 0) abort(); /* a call that is not recorded must not pass */
        close(handle);
    }
    errno = before;
}

static void record_address(const char *call, const struct sockaddr *to) {
    char text[INET6_ADDRSTRLEN] = "?", line[512];
    int port = 0;
    if (!to) return;
    if (to->sa_family == AF_INET) {
        const struct sockaddr_in *at = (const void *)to;
        inet_ntop(AF_INET, &at->sin_addr, text, sizeof text);
        port = ntohs(at->sin_port);
    } else if (to->sa_family == AF_INET6) {
        const struct sockaddr_in6 *at = (const void *)to;
        inet_ntop(AF_INET6, &at->sin6_addr, text, sizeof text);
        port = ntohs(at->sin6_port);
    } else return;
    snprintf(line, sizeof line, "%s %s %d\n", call, text, port);
    record(line);
}

static void record_name(const char *name) {
    char line[512];
    if (!name) return; /* this host */
    snprintf(line, sizeof line, "lookup %.400s\n", name);
    record(line);
}

int connect(int handle, const struct sockaddr *to, socklen_t length) {
    record_address("connect", to);
    return REAL(connect)(handle, to, length);
}

ssize_t sendto(int handle, const void *data, size_t size, int flags, const struct sockaddr *to, socklen_t length) {
    record_address("sendto", to);
    return REAL(sendto)(handle, data, size, flags, to, length);
}

ssize_t sendmsg(int handle, const struct msghdr *message, int flags) {
    record_address("sendmsg", message->msg_name);
    return REAL(sendmsg)(handle, message, flags);
}

int getaddrinfo(const char *name, const char *service, const struct addrinfo *hints, struct addrinfo **found) {
    record_name(name);
    return REAL(getaddrinfo)(name, service, hints, found);
}

struct hostent *gethostbyname(const char *name) {
    record_name(name);
    return REAL(gethostbyname)(name);
}
