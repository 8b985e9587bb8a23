/* The peer of the read path (benchmarks/clients/read_path.py): sendfile, and the client of both.
 *
 *   sendfile serve FILE                     prints its port; serves one client; prints its CPU seconds
 *   sendfile read PORT REQUESTS DEPTH SECONDS
 *
 * Requests and answers are frames of the wire as far as their sizes go: a header of 48 bytes with the
 * lengths of fields and payload at 8 and 12, big-endian, then those. The server takes from a request's
 * payload where to begin and how much to send (8 bytes each), and answers with a header and that part of
 * FILE by sendfile(2). The client sends the first frame of the file REQUESTS and waits for its answer, then
 * the others in turn, again and again, DEPTH of them under way; it receives every byte into a buffer of
 * 256 KiB and looks at headers only. It prints payload bytes, seconds and its own CPU seconds as JSON.
 * Loopback only.
 */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <netinet/tcp.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/sendfile.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#define HEADER 48
#define FRAMES_MAX 65536
#define BUFFER (256 * 1024)

static void stop(const char *what) {
    fprintf(stderr, "sendfile: %s: %s\n", what, strerror(errno));
    exit(1);
}

static double now(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

static double cpu(void) {
    struct rusage used;
    getrusage(RUSAGE_SELF, &used);
    return (double)(used.ru_utime.tv_sec + used.ru_stime.tv_sec) +
           (double)(used.ru_utime.tv_usec + used.ru_stime.tv_usec) * 1e-6;
}

static uint64_t number(const uint8_t *p, int width) {
    uint64_t found = 0;
    while (width--) found = found << 8 | *p++;
    return found;
}

static void send_all(int to, const uint8_t *data, size_t length, int flags) {
    while (length) {
        ssize_t sent = send(to, data, length, flags | MSG_NOSIGNAL);
        if (sent < 0 && errno != EINTR) stop("send");
        if (sent > 0) data += sent, length -= (size_t)sent;
    }
}

/* Exactly so many bytes; 0 at the end of the stream. */
static int receive_all(int from, uint8_t *data, size_t length) {
    while (length) {
        ssize_t got = recv(from, data, length, 0);
        if (got == 0) return 0;
        if (got < 0 && errno != EINTR) stop("receive");
        if (got > 0) data += got, length -= (size_t)got;
    }
    return 1;
}

static void soft(int fd) {
    int one = 1;
    setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
}

static int serve(const char *path) {
    int file = open(path, O_RDONLY), door = socket(AF_INET, SOCK_STREAM, 0);
    struct sockaddr_in at = {.sin_family = AF_INET};
    socklen_t size = sizeof at;
    static uint8_t frame[BUFFER];
    at.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    if (file < 0) stop(path);
    if (door < 0 || bind(door, (struct sockaddr *)&at, size) || listen(door, 1)) stop("listen");
    getsockname(door, (struct sockaddr *)&at, &size);
    printf("%d\n", ntohs(at.sin_port));
    fflush(stdout);
    int client = accept(door, NULL, NULL);
    if (client < 0) stop("accept");
    soft(client);
    while (receive_all(client, frame, HEADER)) {
        uint64_t fields = number(frame + 8, 4), payload = number(frame + 12, 4);
        uint8_t head[HEADER] = {0};
        if (fields + payload > sizeof frame || !receive_all(client, frame, fields + payload)) break;
        if (payload < 16) {
            send_all(client, head, HEADER, 0);
            continue;
        }
        off_t from = (off_t)number(frame + fields, 8);
        uint64_t left = number(frame + fields + 8, 8);
        for (int i = 0; i < 4; i++) head[12 + i] = (uint8_t)(left >> (24 - 8 * i));
        send_all(client, head, HEADER, MSG_MORE);
        while (left) {
            ssize_t sent = sendfile(client, file, &from, left);
            if (sent <= 0 && errno != EINTR) stop("sendfile");
            if (sent > 0) left -= (uint64_t)sent;
        }
    }
    printf("%.6f\n", cpu());
    return 0;
}

static int fetch(int port, const char *path, int depth, double seconds) {
    static const uint8_t *frames[FRAMES_MAX + 1];
    static uint8_t buffer[BUFFER];
    int file = open(path, O_RDONLY), server = socket(AF_INET, SOCK_STREAM, 0), count = 0;
    struct sockaddr_in to = {.sin_family = AF_INET, .sin_port = htons((uint16_t)port)};
    struct stat about;
    to.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    if (file < 0 || fstat(file, &about)) stop(path);
    uint8_t *all = malloc((size_t)about.st_size);
    if (!all || read(file, all, (size_t)about.st_size) != about.st_size) stop(path);
    for (uint8_t *p = all; p < all + about.st_size && count < FRAMES_MAX; count++) {
        frames[count] = p;
        p += HEADER + number(p + 8, 4) + number(p + 12, 4);
        frames[count + 1] = p;
    }
    if (count < 2) return fprintf(stderr, "sendfile: %s holds no requests\n", path), 64;
    if (server < 0 || connect(server, (struct sockaddr *)&to, sizeof to)) stop("connect");
    soft(server);
    uint8_t head[HEADER];
    send_all(server, frames[0], (size_t)(frames[1] - frames[0]), 0);
    if (!receive_all(server, head, HEADER)) stop("hello");
    uint64_t rest = number(head + 8, 4) + number(head + 12, 4);
    if (rest > sizeof buffer || !receive_all(server, buffer, rest)) stop("hello");
    double began = now(), spent = cpu();
    uint64_t payload = 0, left = 0;
    size_t held = 0;
    int next = 1, under_way = 0, ending = 0;
    while (!ending || under_way) {
        while (!ending && under_way < depth) {
            send_all(server, frames[next], (size_t)(frames[next + 1] - frames[next]), 0);
            next = next + 1 < count ? next + 1 : 1;
            under_way++;
        }
        ssize_t got = recv(server, buffer, sizeof buffer, 0);
        if (got <= 0) stop("receive");
        for (const uint8_t *p = buffer, *end = buffer + got; p < end;) {
            if (left) {
                uint64_t part = left < (uint64_t)(end - p) ? left : (uint64_t)(end - p);
                p += part, left -= part;
            } else {
                head[held++] = *p++;
                if (held < HEADER) continue;
                held = 0;
                if (head[7] & 2) return fprintf(stderr, "sendfile: the answer is an error\n"), 1;
                payload += number(head + 12, 4);
                left = number(head + 8, 4) + number(head + 12, 4);
            }
            if (!left && !held) under_way--;
        }
        if (!ending && now() - began >= seconds) ending = 1;
    }
    printf("{\"bytes\": %llu, \"seconds\": %.6f, \"cpu\": %.6f}\n", (unsigned long long)payload,
           now() - began, cpu() - spent);
    return 0;
}

int main(int words, char **word) {
    if (words == 3 && !strcmp(word[1], "serve")) return serve(word[2]);
    if (words == 6 && !strcmp(word[1], "read"))
        return fetch(atoi(word[2]), word[3], atoi(word[4]), atof(word[5]));
    return fprintf(stderr, "sendfile serve FILE | read PORT REQUESTS DEPTH SECONDS\n"), 64;
}
