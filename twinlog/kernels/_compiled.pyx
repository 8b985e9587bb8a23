# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True
"""The kernels, compiled. Described in ``plain.py``, whose every function has its twin here.

Written twice on purpose: the plain form says what is right, property tests compare the two. Nothing
here reads outside the range it was given, whatever lengths the bytes claim: `_parts` and `_rest`
check each length against what is left before it is used.

The GIL is released wherever no Python object is made. Non-ASCII text is hashed by the plain twin.

Sources: see ``plain.py``; ``crc.h`` for both CRCs.
"""

from cpython.buffer cimport PyBUF_SIMPLE, PyBUF_WRITABLE, PyBuffer_Release, PyObject_GetBuffer
from cpython.bytearray cimport PyByteArray_AS_STRING, PyByteArray_Resize
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize, PyBytes_GET_SIZE
from libc.stdint cimport int16_t, int32_t, int64_t, uint8_t, uint16_t, uint32_t, uint64_t
from libc.stdlib cimport free, realloc
from libc.string cimport memchr, memcmp, memcpy, memset

from twinlog.errors import RecordRefused
from twinlog.kernels import plain as _plain
from twinlog.kernels.codes import REFUSALS

cdef extern from "crc.h" nogil:
    void twinlog_crc_setup()
    void twinlog_crc_limit(int level)
    uint32_t twinlog_crc32(uint32_t crc, const uint8_t *p, size_t n)
    uint32_t twinlog_crc32c(uint32_t crc, const uint8_t *p, size_t n)

cdef extern from *:
    """
    #ifndef TWINLOG_DIGEST
    #define TWINLOG_DIGEST ""
    #endif
    """
    const char *TWINLOG_DIGEST

cdef extern from *:
    """
    /* Big-endian numbers as one load or store. Spelled out byte by byte, gcc 12 makes vectors of
       neighbouring stores and takes ten times as long for them. */
    #if defined(__GNUC__) && defined(__BYTE_ORDER__) && \\
        __BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__
    #define TWINLOG_BIG32(value) __builtin_bswap32(value)
    #define TWINLOG_BIG64(value) __builtin_bswap64(value)
    static inline uint32_t twinlog_get32(const uint8_t *p) {
        uint32_t value;
        memcpy(&value, p, 4);
        return TWINLOG_BIG32(value);
    }
    static inline void twinlog_put32(uint8_t *p, uint32_t value) {
        value = TWINLOG_BIG32(value);
        memcpy(p, &value, 4);
    }
    static inline void twinlog_put64(uint8_t *p, uint64_t value) {
        value = TWINLOG_BIG64(value);
        memcpy(p, &value, 8);
    }
    #define TWINLOG_PREFETCH(p) __builtin_prefetch((p), 1, 3)
    #else
    static inline uint32_t twinlog_get32(const uint8_t *p) {
        return (uint32_t)p[0] << 24 | (uint32_t)p[1] << 16 | (uint32_t)p[2] << 8 | p[3];
    }
    static inline void twinlog_put32(uint8_t *p, uint32_t value) {
        p[0] = (uint8_t)(value >> 24);
        p[1] = (uint8_t)(value >> 16);
        p[2] = (uint8_t)(value >> 8);
        p[3] = (uint8_t)value;
    }
    static inline void twinlog_put64(uint8_t *p, uint64_t value) {
        twinlog_put32(p, (uint32_t)(value >> 32));
        twinlog_put32(p + 4, (uint32_t)value);
    }
    #define TWINLOG_PREFETCH(p) ((void)(p))
    #endif
    """
    uint32_t _u32 "twinlog_get32"(const uint8_t *p) noexcept nogil
    void _put32 "twinlog_put32"(uint8_t *p, uint32_t value) noexcept nogil
    void _put64 "twinlog_put64"(uint8_t *p, uint64_t value) noexcept nogil
    void _prefetch "TWINLOG_PREFETCH"(const uint8_t *p) noexcept nogil

cdef extern from "Python.h":
    bytearray PyByteArray_FromStringAndSize(const char *string, Py_ssize_t length)
    str PyUnicode_DecodeUTF8(const char *string, Py_ssize_t length, const char *errors)

DIGEST = TWINLOG_DIGEST.decode()
"""SHA-256 of the sources this was built from; the loader compares it."""

twinlog_crc_setup()

cdef enum:
    FINE = 0
    SIZE = 1
    MAGIC = 2
    TOPIC = 3
    QUEUE = 4
    CRC = 5
    PROPERTIES = 6
    COUNT = 7
    HOST = 8
    BODY_SIZE = 9
    SYS_FLAG = 10
    OFFSET = 11
    BLANK = 12
    LIGHT = 13
    INNER = 14

cdef enum:
    BORN_V6 = 0x10
    STORE_V6 = 0x20
    INNER_BATCH = 0x80
    INNER_FLAGS = 0xC0
    TRANSACTION = 0xC
    PREPARED = 0x4
    ROLLBACK = 0xC
    COMPRESSED = 0x701
    COMPRESSION = 0x700
    COMPRESSION_MAX = 0x300

cdef uint32_t TOP = <uint32_t>1 << 31
cdef uint32_t MAGIC_V1 = 0xDAA320A7
cdef uint32_t MAGIC_V2 = 0xDAA320AB
cdef uint32_t MAGIC_BLANK = 0xCBD43194
cdef Py_ssize_t PROPERTIES_MAX = 32767
cdef int64_t RECORD_MAX = 0x7FFFFFFF
cdef const char *CRC_PROPERTY = b"__CRC32#"
cdef const char *LIGHT_PROPERTY = b"INNER_MULTI_DISPATCH"
cdef const char *NUMBER_PROPERTY = b"INNER_NUM"
cdef const char *BASE_PROPERTY = b"INNER_BASE"
cdef const char *BASE_ROOM = b"0000000000000000000"
cdef int64_t MESSAGES_MAX = 32767
cdef bytes DELAY_TOPIC = b"SCHEDULE_TOPIC_XXXX"


cdef struct Parts:
    const uint8_t *at
    int64_t size
    uint32_t flag
    const uint8_t *stamp         # store timestamp; the store host follows it
    const uint8_t *body
    int64_t body_length
    const uint8_t *topic
    int64_t topic_length
    const uint8_t *text
    int64_t text_length


cdef inline int32_t _i32(const uint8_t *p) noexcept nogil:
    return <int32_t>_u32(p)


cdef inline int16_t _i16(const uint8_t *p) noexcept nogil:
    return <int16_t>(p[0] << 8 | p[1])


cdef inline int64_t _i64(const uint8_t *p) noexcept nogil:
    return <int64_t>(<uint64_t>_u32(p) << 32 | _u32(p + 4))


cdef inline int _parts(const uint8_t *p, int64_t left, Parts *out) noexcept nogil:
    cdef int64_t hosts, length
    cdef uint32_t magic
    if left < 8:
        return SIZE
    magic = _u32(p + 4)
    if magic != MAGIC_V1 and magic != MAGIC_V2:
        return MAGIC
    out.at = p
    out.size = _i32(p)
    if out.size < 91 or out.size > left:
        return SIZE
    out.flag = _u32(p + 36)
    hosts = (20 if out.flag & BORN_V6 else 8) + (20 if out.flag & STORE_V6 else 8)
    if out.size < 74 + hosts:
        return SIZE
    out.stamp = p + (68 if out.flag & BORN_V6 else 56)
    out.body = p + 72 + hosts
    length = _i32(out.body - 4)
    out.body_length = length if length > 0 else 0
    if out.body_length > out.size - 72 - hosts:
        return SIZE
    return FINE


cdef inline int _rest(Parts *out) noexcept nogil:
    cdef const uint8_t *p = out.body + out.body_length
    cdef const uint8_t *end = out.at + out.size
    cdef int64_t length
    if _u32(out.at + 4) == MAGIC_V1:
        if end - p < 3:
            return SIZE
        out.topic_length = p[0]
        if out.topic_length > 127:
            return SIZE
        out.topic = p + 1
    else:
        if end - p < 4:
            return SIZE
        out.topic_length = _i16(p)
        if out.topic_length < 0:
            return SIZE
        out.topic = p + 2
    if end - out.topic < out.topic_length + 2:
        return SIZE
    out.text = out.topic + out.topic_length + 2
    length = _i16(out.text - 2)
    out.text_length = length if length > 0 else 0
    if end - out.text != out.text_length:
        return SIZE
    return FINE


cdef inline bint _utf8(const uint8_t *p, const uint8_t *end) noexcept nogil:
    """Whether the bytes are UTF-8 as Python's strict decoder takes it."""
    cdef uint8_t first, low, high
    cdef int more
    while p < end:
        first = p[0]
        p += 1
        if first < 0x80:
            continue
        low, high = 0x80, 0xBF
        if 0xC2 <= first <= 0xDF:
            more = 1
        elif 0xE0 <= first <= 0xEF:
            more = 2
            if first == 0xE0:
                low = 0xA0
            elif first == 0xED:
                high = 0x9F
        elif 0xF0 <= first <= 0xF4:
            more = 3
            if first == 0xF0:
                low = 0x90
            elif first == 0xF4:
                high = 0x8F
        else:
            return False
        if end - p < more or p[0] < low or p[0] > high:
            return False
        p += 1
        more -= 1
        while more:
            if p[0] & 0xC0 != 0x80:
                return False
            p += 1
            more -= 1
    return True


cdef inline int _properties_code(
    const uint8_t *p, int64_t length, bint *numbered
) noexcept nogil:
    """FINE, PROPERTIES, or LIGHT where they name light queues; and whether INNER_NUM is there."""
    cdef const uint8_t *end = p + length
    cdef const uint8_t *stop
    cdef const uint8_t *mid
    cdef int code = FINE
    numbered[0] = False
    if length == 0:
        return FINE
    if not _utf8(p, end):
        return PROPERTIES
    if (end - 1)[0] == 2:
        end -= 1
    while True:
        stop = <const uint8_t *>memchr(p, 2, end - p) if p < end else NULL
        if stop == NULL:
            stop = end
        mid = <const uint8_t *>memchr(p, 1, stop - p) if p < stop else NULL
        if mid == NULL or mid == p:
            return PROPERTIES
        if mid - p == 8 and memcmp(p, CRC_PROPERTY, 8) == 0:
            return PROPERTIES
        if mid - p == 20 and memcmp(p, LIGHT_PROPERTY, 20) == 0:
            code = LIGHT
        if mid - p == 9 and memcmp(p, NUMBER_PROPERTY, 9) == 0:
            numbered[0] = True
        if stop == end:
            return code
        p = stop + 1


cdef inline const uint8_t *_property(
    const uint8_t *p, int64_t length, const char *name, int64_t name_length, int64_t *found
) noexcept nogil:
    """The last non-empty value of a property, its length in ``found``; NULL if there is none."""
    cdef const uint8_t *end = p + length
    cdef const uint8_t *stop
    cdef const uint8_t *value = NULL
    found[0] = 0
    while p < end:
        stop = <const uint8_t *>memchr(p, 2, end - p)
        if stop == NULL:
            stop = end
        if (
            stop - p > name_length + 1
            and p[name_length] == 1
            and memcmp(p, name, name_length) == 0
        ):
            value = p + name_length + 1
            found[0] = stop - value
        p = stop + 1
    return value


cdef inline int64_t _decimal(const uint8_t *p, int64_t length) noexcept nogil:
    """See `inner.decimal`; NULL is no number either."""
    cdef uint64_t value = 0
    cdef int64_t i
    if p == NULL or length < 1 or length > 19:
        return -1
    for i in range(length):
        if p[i] < 0x30 or p[i] > 0x39:
            return -1
        value = value * 10 + (p[i] - 0x30)  # 19 digits fit into 64 bits without a sign
    return <int64_t>value if value < <uint64_t>1 << 63 else -1


cdef inline int64_t _items_in(const uint8_t *p, int64_t left) noexcept nogil:
    """See `inner.items_in`."""
    cdef int64_t count = 0, size, length, text
    while left > 0:
        if left < 22:
            return -1
        size = _i32(p)
        length = _i32(p + 16)
        if length < 0 or length > left - 22:
            return -1
        text = <int64_t>(p[20 + length] << 8 | p[21 + length])
        if text > 32767 or size != 22 + length + text or size > left:
            return -1
        count += 1
        p += size
        left -= size
    return count


cdef inline int _inner_code(Parts *parts) noexcept nogil:
    """See `inner.inner_code`."""
    cdef int64_t length = 0
    cdef int64_t number
    cdef const uint8_t *found
    found = _property(parts.text, parts.text_length, NUMBER_PROPERTY, 9, &length)
    if not parts.flag & INNER_BATCH:
        return FINE if found == NULL else INNER
    number = _decimal(found, length)
    if number < 1 or number > MESSAGES_MAX:
        return INNER
    if number != _items_in(parts.body, parts.body_length):
        return INNER
    found = _property(parts.text, parts.text_length, BASE_PROPERTY, 10, &length)
    if found == NULL or length != 19 or memcmp(found, BASE_ROOM, 19) != 0:
        return INNER
    return FINE


cdef inline int64_t _number_inner(Parts *parts, int64_t base) noexcept nogil:
    """See `inner.number_inner`."""
    cdef int64_t length = 0
    cdef int64_t number
    cdef int i
    cdef uint64_t rest = <uint64_t>base
    cdef uint8_t *found
    if _rest(parts):
        return 0
    found = <uint8_t *>_property(parts.text, parts.text_length, NUMBER_PROPERTY, 9, &length)
    number = _decimal(found, length)
    found = <uint8_t *>_property(parts.text, parts.text_length, BASE_PROPERTY, 10, &length)
    if found != NULL and length == 19:
        for i in range(18, -1, -1):
            found[i] = <uint8_t>(0x30 + rest % 10)
            rest //= 10
    return number if 1 <= number <= MESSAGES_MAX else 1


cdef inline bint _hash(
    const uint8_t *p, int64_t length, uint32_t *value
) noexcept nogil:
    """Continue Java's hash over ASCII; False at the first byte that is not."""
    cdef uint32_t h = value[0]
    cdef int64_t i
    for i in range(length):
        if p[i] & 0x80:
            return False
        h = 31 * h + p[i]
    value[0] = h
    return True


cdef inline int _range(Py_ssize_t size, Py_ssize_t start, Py_ssize_t end) except -1:
    if start < 0 or end < start or end > size:
        raise ValueError(f"{start}..{end} is not in a buffer of {size} bytes")
    return 0


def crc32(data, uint32_t value=0):
    """See `plain.crc32`."""
    cdef Py_buffer view
    cdef uint32_t crc
    PyObject_GetBuffer(data, &view, PyBUF_SIMPLE)
    try:
        if view.len < 65536:
            crc = twinlog_crc32(value, <const uint8_t *>view.buf, view.len)
        else:
            with nogil:
                crc = twinlog_crc32(value, <const uint8_t *>view.buf, view.len)
    finally:
        PyBuffer_Release(&view)
    return crc


def crc32c(data, uint32_t value=0):
    """See `plain.crc32c`."""
    cdef Py_buffer view
    cdef uint32_t crc
    PyObject_GetBuffer(data, &view, PyBUF_SIMPLE)
    try:
        if view.len < 65536:
            crc = twinlog_crc32c(value, <const uint8_t *>view.buf, view.len)
        else:
            with nogil:
                crc = twinlog_crc32c(value, <const uint8_t *>view.buf, view.len)
    finally:
        PyBuffer_Release(&view)
    return crc


def crc_level(int level):
    """Use tables (0), 128-bit folding too (1), 512-bit (2) or all the CPU has (3); for tests."""
    twinlog_crc_limit(level)


def java_hash(bytes text not None):
    """See `plain.java_hash`."""
    cdef uint32_t value = 0
    if _hash(<const uint8_t *>PyBytes_AS_STRING(text), PyBytes_GET_SIZE(text), &value):
        return <int32_t>value
    return _plain.java_hash(text)


def key_hash(bytes text not None):
    """See `plain.key_hash`."""
    cdef uint32_t value = 0
    if _hash(<const uint8_t *>PyBytes_AS_STRING(text), PyBytes_GET_SIZE(text), &value):
        return _absolute(value)
    return _plain.key_hash(text)


cdef inline int32_t _absolute(uint32_t value) noexcept nogil:
    cdef int32_t signed = <int32_t>value
    if signed >= 0:
        return signed
    return <int32_t>(~value + 1) if value != TOP else 0


cdef class SectionEncoder:
    """See `plain.SectionEncoder`."""

    cdef bytes _head
    cdef bytes _topic
    cdef bytearray _out
    cdef Py_ssize_t _used
    cdef Py_ssize_t _room
    cdef Py_ssize_t _count
    cdef uint32_t _flags

    def __init__(self, bytes head not None, bytes topic not None):
        cdef Py_ssize_t length = len(topic)
        if len(head) < 88 or length > 32767:
            raise ValueError("a head of at least 88 bytes and a topic of at most 32767")
        self._head = head
        if length <= 127:
            self._topic = length.to_bytes(1, "big") + topic
        else:
            self._topic = length.to_bytes(2, "big") + topic
        self._flags = int.from_bytes(head[36:40], "big")
        self._room = 4096
        self._begin()

    cdef int _begin(self) except -1:
        self._out = PyByteArray_FromStringAndSize(NULL, self._room)
        self._used = 0
        self._count = 0
        return 0

    @property
    def count(self):
        """Records since the last `take`."""
        return self._count

    @property
    def size(self):
        """Bytes since the last `take`."""
        return self._used

    def add(
        self,
        body,
        *,
        bytes properties not None=b"",
        int32_t flag=0,
        int32_t sys_flag=0,
        int64_t born_timestamp=0,
        int64_t prepared=0,
    ):
        """Append one record and return its size in bytes."""
        cdef Py_buffer view
        cdef Py_ssize_t size
        if type(body) is bytes:
            return self._add(
                <const uint8_t *>PyBytes_AS_STRING(body), PyBytes_GET_SIZE(body), properties,
                flag, sys_flag, born_timestamp, prepared,
            )
        PyObject_GetBuffer(body, &view, PyBUF_SIMPLE)
        try:
            size = self._add(
                <const uint8_t *>view.buf, view.len, properties, flag, sys_flag, born_timestamp,
                prepared,
            )
        finally:
            PyBuffer_Release(&view)
        return size

    cdef Py_ssize_t _add(
        self,
        const uint8_t *body,
        Py_ssize_t body_length,
        bytes properties,
        int32_t flag,
        int32_t sys_flag,
        int64_t born_timestamp,
        int64_t prepared,
    ) except -1:
        cdef Py_ssize_t head = PyBytes_GET_SIZE(self._head)
        cdef Py_ssize_t topic = PyBytes_GET_SIZE(self._topic)
        cdef Py_ssize_t text = PyBytes_GET_SIZE(properties)
        cdef Py_ssize_t size = head + body_length + topic + 2 + text
        cdef uint8_t *p
        if text > PROPERTIES_MAX:
            reason = f"properties of {text} bytes, at most {PROPERTIES_MAX} fit"
            raise RecordRefused(reason, record=self._count, reason="properties")
        if size > RECORD_MAX:
            raise RecordRefused("the record exceeds 2 GiB", record=self._count, reason="size")
        if self._used + size > self._room:
            self._grow(self._used + size)
        p = <uint8_t *>PyByteArray_AS_STRING(self._out) + self._used
        memcpy(p, PyBytes_AS_STRING(self._head), head)
        _put32(p, <uint32_t>size)
        _put32(p + 8, twinlog_crc32(0, body, body_length) & 0x7FFFFFFF)
        _put32(p + 16, <uint32_t>flag)
        _put32(p + 36, <uint32_t>sys_flag | self._flags)
        _put64(p + 40, <uint64_t>born_timestamp)
        _put64(p + head - 12, <uint64_t>prepared)
        _put32(p + head - 4, <uint32_t>body_length)
        p += head
        memcpy(p, body, body_length)
        p += body_length
        memcpy(p, PyBytes_AS_STRING(self._topic), topic)
        p += topic
        p[0] = text >> 8
        p[1] = text & 0xFF
        memcpy(p + 2, PyBytes_AS_STRING(properties), text)
        self._used += size
        self._count += 1
        return size

    cdef int _grow(self, Py_ssize_t need) except -1:
        cdef Py_ssize_t room = self._room
        while room < need:
            room *= 2
        PyByteArray_Resize(self._out, room)
        self._room = room
        return 0

    def take(self):
        """Hand over the bytes so far and begin anew, with as much room."""
        cdef bytearray out = self._out
        PyByteArray_Resize(out, self._used)
        while self._room > 4096 and self._room // 4 > self._used:
            self._room //= 2
        self._begin()
        return out


cdef inline int _check_record(
    const uint8_t *p, int64_t left, Parts *parts, const uint8_t *topic, int64_t topic_length,
    int32_t queue, int64_t body_max, uint32_t store_bit, bint check_crc, bint inner
) noexcept nogil:
    cdef int code = _parts(p, left, parts)
    cdef int32_t length
    cdef bint numbered = False
    if code:
        return code
    length = _i32(parts.body - 4)
    if length < 0 or length > body_max:
        return BODY_SIZE
    if _i32(p + 12) != queue:
        return QUEUE
    if parts.flag & STORE_V6 != store_bit:
        return HOST
    if parts.flag & INNER_FLAGS and (
        not inner or parts.flag & INNER_FLAGS != INNER_FLAGS or parts.flag & COMPRESSED
    ):
        return SYS_FLAG
    if parts.flag & TRANSACTION == PREPARED:
        return SYS_FLAG
    if parts.flag & TRANSACTION == ROLLBACK or parts.flag & COMPRESSION > COMPRESSION_MAX:
        return SYS_FLAG
    code = _rest(parts)
    if code:
        return code
    if parts.topic_length != topic_length or memcmp(parts.topic, topic, topic_length) != 0:
        return TOPIC
    code = _properties_code(parts.text, parts.text_length, &numbered)
    if (parts.text - 2)[0] & 0x80 or code == PROPERTIES:
        return PROPERTIES
    if (numbered or parts.flag & INNER_BATCH) and (not inner or _inner_code(parts)):
        return INNER
    if check_crc and (
        twinlog_crc32(0, parts.body, parts.body_length) & 0x7FFFFFFF != _u32(p + 8)
    ):
        return CRC
    return code


def check_section(
    data,
    Py_ssize_t start,
    Py_ssize_t length,
    Py_ssize_t count,
    bytes topic not None,
    int32_t queue,
    *,
    int64_t body_max,
    int family,
    bint check_crc=True,
    bint inner=False,
):
    """See `plain.check_section`."""
    cdef Py_buffer view
    cdef Parts parts
    cdef int code = FINE
    cdef Py_ssize_t number = 0
    cdef Py_ssize_t light = -1
    cdef const uint8_t *p
    cdef const uint8_t *end
    cdef const uint8_t *name = <const uint8_t *>PyBytes_AS_STRING(topic)
    cdef int64_t name_length = PyBytes_GET_SIZE(topic)
    cdef uint32_t store_bit = STORE_V6 if family == 6 else 0
    PyObject_GetBuffer(data, &view, PyBUF_SIMPLE)
    try:
        _range(view.len, start, start + length)
        with nogil:
            p = <const uint8_t *>view.buf + start
            end = p + length
            while p < end:
                code = _check_record(
                    p, end - p, &parts, name, name_length, queue, body_max, store_bit, check_crc,
                    inner,
                )
                if code == LIGHT:
                    light = number if light < 0 else light
                    code = FINE
                if code:
                    break
                number += 1
                p += parts.size
    finally:
        PyBuffer_Release(&view)
    if code:
        return number, code
    if number != count:
        return number, COUNT
    return None if light < 0 else (light, LIGHT)


def patch_section(
    data,
    Py_ssize_t start,
    Py_ssize_t length,
    *,
    int64_t log_offset,
    int64_t queue_offset,
    int64_t store_timestamp,
    bytes store_host not None,
):
    """See `plain.patch_section`."""
    cdef Py_buffer view
    cdef Parts parts
    cdef int code = FINE
    cdef int64_t number = 0, held
    cdef uint8_t *p
    cdef uint8_t *end
    cdef uint8_t *base
    cdef const char *host = PyBytes_AS_STRING(store_host)
    cdef Py_ssize_t host_length = PyBytes_GET_SIZE(store_host)
    PyObject_GetBuffer(data, &view, PyBUF_WRITABLE)
    try:
        _range(view.len, start, start + length)
        with nogil:
            base = <uint8_t *>view.buf + start
            p = base
            end = p + length
            while p < end:
                code = _parts(p, end - p, &parts)
                if not code and host_length != (20 if parts.flag & STORE_V6 else 8):
                    code = HOST
                if code:
                    break
                _put64(p + 20, <uint64_t>(queue_offset + number))
                _put64(p + 28, <uint64_t>(log_offset + (p - base)))
                _put64(<uint8_t *>parts.stamp, <uint64_t>store_timestamp)
                if host_length == 8:  # of a known length it is one store, not a call
                    memcpy(<uint8_t *>parts.stamp + 8, host, 8)
                else:
                    memcpy(<uint8_t *>parts.stamp + 8, host, host_length)
                if parts.flag & INNER_BATCH:
                    held = _number_inner(&parts, queue_offset + number)
                    if not held:
                        code = SIZE
                        break
                    number += held
                else:
                    number += 1
                p += parts.size
    finally:
        PyBuffer_Release(&view)
    if code:
        raise ValueError(f"record {number} was not checked: {REFUSALS[code]}")
    return number


cdef inline int _accept(
    const uint8_t *p, int64_t left, Parts *parts, bint check_crc
) noexcept nogil:
    cdef int code = _parts(p, left, parts)
    if not code:
        code = _rest(parts)
    if not code and check_crc and parts.body_length:
        if twinlog_crc32(0, parts.body, parts.body_length) & 0x7FFFFFFF != _u32(p + 8):
            code = CRC
    return code


def walk(data, Py_ssize_t start, Py_ssize_t end, *, bint check_crc=True):
    """See `plain.walk`."""
    cdef Py_buffer view
    cdef Parts parts
    cdef int code = FINE
    cdef Py_ssize_t count = 0, at = start, last = -1
    cdef int64_t stamp = 0
    cdef const uint8_t *p
    PyObject_GetBuffer(data, &view, PyBUF_SIMPLE)
    try:
        _range(view.len, start, end)
        with nogil:
            while at < end:
                p = <const uint8_t *>view.buf + at
                if end - at >= 8 and _u32(p + 4) == MAGIC_BLANK:
                    code = BLANK
                    break
                code = _accept(p, end - at, &parts, check_crc)
                if code:
                    break
                count += 1
                last = at
                stamp = _i64(parts.stamp)
                at += parts.size
    finally:
        PyBuffer_Release(&view)
    return count, at, code, stamp, last


def verify_records(
    data,
    Py_ssize_t start,
    Py_ssize_t end,
    int64_t log_offset,
    *,
    bint check_crc=True,
    bint check_offsets=True,
):
    """See `plain.verify_records`."""
    cdef Py_buffer view
    cdef Parts parts
    cdef int code = FINE
    cdef Py_ssize_t count = 0, at = start
    cdef const uint8_t *p
    PyObject_GetBuffer(data, &view, PyBUF_SIMPLE)
    try:
        _range(view.len, start, end)
        with nogil:
            while at < end:
                p = <const uint8_t *>view.buf + at
                if end - at >= 8 and _u32(p + 4) == MAGIC_BLANK:
                    code = FINE if <int64_t>_u32(p) == end - at else BLANK
                    break
                code = _accept(p, end - at, &parts, check_crc)
                if not code and check_offsets and _i64(p + 28) != log_offset + (at - start):
                    code = OFFSET
                if code:
                    break
                count += 1
                at += parts.size
    finally:
        PyBuffer_Release(&view)
    if code:
        return count, log_offset + (at - start), code
    return count, -1, FINE


def find_properties(data, Py_ssize_t start, Py_ssize_t end, tuple names not None):
    """See `plain.find_properties`."""
    cdef Py_buffer view
    cdef Parts parts
    cdef Py_ssize_t at = start
    cdef Py_ssize_t which
    cdef Py_ssize_t width = len(names)
    cdef const uint8_t *p
    cdef const uint8_t *text
    cdef const uint8_t *text_end
    cdef const uint8_t *stop
    cdef const char *wanted[4]
    cdef int64_t lengths[4]
    cdef const uint8_t *values[4]
    cdef int64_t sizes[4]
    cdef list found = []
    if width > 4:
        raise ValueError("at most 4 names")
    for which in range(width):
        wanted[which] = PyBytes_AS_STRING(<bytes?>names[which])
        lengths[which] = PyBytes_GET_SIZE(<bytes?>names[which])
    PyObject_GetBuffer(data, &view, PyBUF_SIMPLE)
    try:
        _range(view.len, start, end)
        while at < end:
            p = <const uint8_t *>view.buf + at
            if _parts(p, end - at, &parts) or _rest(&parts):
                break
            for which in range(width):
                values[which] = NULL
            text, text_end = parts.text, parts.text + parts.text_length
            while text < text_end:
                stop = <const uint8_t *>memchr(text, 2, text_end - text)
                if stop == NULL:
                    stop = text_end
                for which in range(width):
                    if (
                        stop - text > lengths[which] + 1
                        and text[lengths[which]] == 1
                        and memcmp(text, wanted[which], lengths[which]) == 0
                    ):
                        values[which] = text + lengths[which] + 1
                        sizes[which] = stop - values[which]
                text = stop + 1
            for which in range(width):
                if values[which] != NULL:
                    value = PyBytes_FromStringAndSize(<const char *>values[which], sizes[which])
                    found.append((at, which, value))
            at += parts.size
    finally:
        PyBuffer_Release(&view)
    return found


def find_property(data, Py_ssize_t start, Py_ssize_t end, bytes name not None):
    """See `plain.find_property`."""
    return [(at, value) for at, _, value in find_properties(data, start, end, (name,))]


def pick_properties(data, int64_t base, entries, names not None):
    """See `plain.pick_properties`."""
    cdef Py_buffer view
    cdef Py_buffer wanted
    cdef Parts parts
    cdef const uint8_t *entry
    cdef const uint8_t *value
    cdef int64_t length = 0
    cdef int64_t at
    cdef Py_ssize_t number, column
    cdef tuple columns = tuple(names)
    cdef Py_ssize_t width = len(columns)
    cdef bytes name
    cdef list rows = []
    cdef list row
    PyObject_GetBuffer(data, &view, PyBUF_SIMPLE)
    try:
        PyObject_GetBuffer(entries, &wanted, PyBUF_SIMPLE)
        try:
            if wanted.len % 20:
                raise _plain.struct.error("queue entries of 20 bytes")
            for number in range(wanted.len // 20):
                entry = <const uint8_t *>wanted.buf + number * 20
                at = _i64(entry)
                if at < base or at - base > view.len:
                    return number
                at -= base
                if (
                    _parts(<const uint8_t *>view.buf + at, view.len - at, &parts)
                    or _rest(&parts)
                    or parts.size != <int64_t>_u32(entry + 8)
                ):
                    return number
                row = []
                for column in range(width):
                    name = <bytes?>columns[column]
                    value = _property(
                        parts.text,
                        parts.text_length,
                        PyBytes_AS_STRING(name),
                        PyBytes_GET_SIZE(name),
                        &length,
                    )
                    row.append(None if value == NULL else _text(value, length))
                rows.append(tuple(row))
        finally:
            PyBuffer_Release(&wanted)
    finally:
        PyBuffer_Release(&view)
    return rows


def bodies_digest(data, Py_ssize_t start, Py_ssize_t end):
    """See `plain.bodies_digest`."""
    cdef Py_buffer view
    cdef Parts parts
    cdef Py_ssize_t at = start
    cdef const uint8_t *p
    cdef uint32_t crc = 0
    PyObject_GetBuffer(data, &view, PyBUF_SIMPLE)
    try:
        _range(view.len, start, end)
        with nogil:
            while at < end:
                p = <const uint8_t *>view.buf + at
                if _parts(p, end - at, &parts):
                    break
                crc = twinlog_crc32c(crc, p + 8, 4)
                crc = twinlog_crc32c(crc, parts.body - 4, 4)
                at += parts.size
    finally:
        PyBuffer_Release(&view)
    return crc


def store_timestamp_last(data, Py_ssize_t start, Py_ssize_t end):
    """See `plain.store_timestamp_last`."""
    return walk(data, start, end, check_crc=False)[3]


def tags_code(bytes topic not None, properties, int64_t store_timestamp):
    """See `plain.tags_code`."""
    cdef Py_buffer view
    if topic == DELAY_TOPIC:
        return _plain.tags_code(topic, properties, store_timestamp)
    PyObject_GetBuffer(properties, &view, PyBUF_SIMPLE)
    try:
        return _tag_hash(<const uint8_t *>view.buf, view.len)
    finally:
        PyBuffer_Release(&view)


cdef inline int64_t _tag_hash(const uint8_t *text, int64_t length) except? -1:
    cdef int64_t tag_length = 0
    cdef uint32_t value = 0
    cdef const uint8_t *tag = _property(text, length, "TAGS", 4, &tag_length)
    if tag == NULL:
        return 0
    if _hash(tag, tag_length, &value):
        return <int32_t>value
    return _plain.java_hash(PyBytes_FromStringAndSize(<const char *>tag, tag_length))


cdef inline int64_t _tags_code(Parts *parts) except? -1:
    if parts.topic_length == 19 and memcmp(parts.topic, PyBytes_AS_STRING(DELAY_TOPIC), 19) == 0:
        return _plain.tags_code(
            DELAY_TOPIC,
            PyBytes_FromStringAndSize(<const char *>parts.text, parts.text_length),
            _i64(parts.stamp),
        )
    return _tag_hash(parts.text, parts.text_length)


cdef class _Packed:
    """Bytes that grow."""

    cdef uint8_t *p
    cdef Py_ssize_t used
    cdef Py_ssize_t room

    def __dealloc__(self):
        free(self.p)

    cdef uint8_t *more(self, Py_ssize_t size) except NULL:
        cdef uint8_t *p
        if self.used + size > self.room:
            self.room = self.room * 2 if self.room else 4096
            p = <uint8_t *>realloc(self.p, self.room)
            if p == NULL:
                raise MemoryError
            self.p = p
        p = self.p + self.used
        self.used += size
        return p

    cdef bytes take(self):
        cdef bytes out = PyBytes_FromStringAndSize(<const char *>self.p, self.used)
        self.used = 0
        return out


def scan_queues(data, Py_ssize_t start, Py_ssize_t end, int64_t log_offset):
    """See `plain.scan_queues`."""
    cdef Py_buffer view
    cdef Parts parts
    cdef Py_ssize_t at = start
    cdef const uint8_t *p
    cdef uint8_t *entry
    cdef const uint8_t *topic = NULL
    cdef int64_t topic_length = 0, first = 0
    cdef int32_t queue = 0
    cdef int64_t code
    cdef _Packed packed = _Packed()
    cdef list runs = []
    PyObject_GetBuffer(data, &view, PyBUF_SIMPLE)
    try:
        _range(view.len, start, end)
        while at < end:
            p = <const uint8_t *>view.buf + at
            if _parts(p, end - at, &parts) or _rest(&parts):
                break
            if parts.flag & TRANSACTION != PREPARED and parts.flag & TRANSACTION != ROLLBACK:
                if (
                    topic == NULL
                    or _i32(p + 12) != queue
                    or parts.topic_length != topic_length
                    or memcmp(parts.topic, topic, topic_length) != 0
                    or <uint64_t>_i64(p + 20) != <uint64_t>first + <uint64_t>(packed.used // 20)
                ):
                    if topic != NULL:
                        runs.append(_run(topic, topic_length, queue, first, packed))
                    topic = parts.topic
                    topic_length = parts.topic_length
                    queue = _i32(p + 12)
                    first = _i64(p + 20)
                code = _tags_code(&parts)
                entry = packed.more(20)
                _put64(entry, <uint64_t>(log_offset + (at - start)))
                _put32(entry + 8, <uint32_t>parts.size)
                _put64(entry + 12, <uint64_t>code)
            at += parts.size
        if topic != NULL:
            runs.append(_run(topic, topic_length, queue, first, packed))
    finally:
        PyBuffer_Release(&view)
    return runs


cdef tuple _run(
    const uint8_t *topic, int64_t topic_length, int32_t queue, int64_t first, _Packed packed
):
    name = PyBytes_FromStringAndSize(<const char *>topic, topic_length)
    return name, queue, first, packed.take()


cdef class _Gathered:
    """The entries of one queue while they are gathered."""

    cdef bytes topic
    cdef int32_t queue
    cdef int64_t first
    cdef _Packed packed


def gather_queues(data, Py_ssize_t start, Py_ssize_t end, int64_t log_offset):
    """See `plain.gather_queues`."""
    cdef Py_buffer view
    cdef Parts parts
    cdef Py_ssize_t at = start
    cdef const uint8_t *p
    cdef uint8_t *entry
    cdef int64_t code
    cdef _Gathered now = None
    cdef _Gathered one
    cdef list order = []
    cdef dict known = {}
    PyObject_GetBuffer(data, &view, PyBUF_SIMPLE)
    try:
        _range(view.len, start, end)
        while at < end:
            p = <const uint8_t *>view.buf + at
            if _parts(p, end - at, &parts) or _rest(&parts):
                break
            if parts.flag & TRANSACTION != PREPARED and parts.flag & TRANSACTION != ROLLBACK:
                if (
                    now is None
                    or _i32(p + 12) != now.queue
                    or parts.topic_length != PyBytes_GET_SIZE(now.topic)
                    or memcmp(parts.topic, PyBytes_AS_STRING(now.topic), parts.topic_length) != 0
                ):
                    topic = PyBytes_FromStringAndSize(<const char *>parts.topic, parts.topic_length)
                    now = known.get((topic, _i32(p + 12)))
                else:
                    topic = now.topic
                if now is None or (
                    <uint64_t>_i64(p + 20)
                    != <uint64_t>now.first + <uint64_t>(now.packed.used // 20)
                ):
                    now = _Gathered()
                    now.topic = topic
                    now.queue = _i32(p + 12)
                    now.first = _i64(p + 20)
                    now.packed = _Packed()
                    known[topic, now.queue] = now
                    order.append(now)
                code = _tags_code(&parts)
                entry = now.packed.more(20)
                _put64(entry, <uint64_t>(log_offset + (at - start)))
                _put32(entry + 8, <uint32_t>parts.size)
                _put64(entry + 12, <uint64_t>code)
            at += parts.size
    finally:
        PyBuffer_Release(&view)
    return [(one.topic, one.queue, one.first, one.packed.take()) for one in order]


cdef class _Units:
    """The units of one batch queue while they are gathered."""

    cdef bytes topic
    cdef int32_t queue
    cdef int64_t first
    cdef uint64_t behind
    cdef _Packed packed


def gather_units(data, Py_ssize_t start, Py_ssize_t end, int64_t log_offset, topics not None):
    """See `plain.gather_units`."""
    cdef Py_buffer view
    cdef Parts parts
    cdef Py_ssize_t at = start
    cdef const uint8_t *p
    cdef const uint8_t *value
    cdef uint8_t *unit
    cdef int64_t code, base, number, named, length = 0
    cdef uint32_t count
    cdef _Units now
    cdef _Units one
    cdef list order = []
    cdef dict known = {}
    PyObject_GetBuffer(data, &view, PyBUF_SIMPLE)
    try:
        _range(view.len, start, end)
        while at < end:
            p = <const uint8_t *>view.buf + at
            if _parts(p, end - at, &parts) or _rest(&parts):
                break
            at += parts.size
            if parts.flag & TRANSACTION == PREPARED or parts.flag & TRANSACTION == ROLLBACK:
                continue
            topic = PyBytes_FromStringAndSize(<const char *>parts.topic, parts.topic_length)
            if topic not in topics:
                continue
            base, count = _i64(p + 20), 1
            value = _property(parts.text, parts.text_length, NUMBER_PROPERTY, 9, &length)
            number = _decimal(value, length)
            value = _property(parts.text, parts.text_length, BASE_PROPERTY, 10, &length)
            named = _decimal(value, length)
            if 1 <= number <= MESSAGES_MAX and named >= 0:
                base, count = named, <uint32_t>number
            now = known.get((topic, _i32(p + 12)))
            if now is None or now.behind != <uint64_t>base:
                now = _Units()
                now.topic = topic
                now.queue = _i32(p + 12)
                now.first = base
                now.packed = _Packed()
                known[topic, now.queue] = now
                order.append(now)
            now.behind = <uint64_t>base + count
            code = _tags_code(&parts)
            unit = now.packed.more(46)
            _put64(unit, <uint64_t>(log_offset + (p - <const uint8_t *>view.buf - start)))
            _put32(unit + 8, <uint32_t>parts.size)
            _put64(unit + 12, <uint64_t>code)
            memcpy(unit + 20, parts.stamp, 8)
            _put64(unit + 28, <uint64_t>base)
            unit[36] = count >> 8
            unit[37] = count & 0xFF
            _put32(unit + 38, 0xFFFFFFFF)
            _put32(unit + 42, 0)
    finally:
        PyBuffer_Release(&view)
    return [
        (one.topic, one.queue, one.first, <int64_t>one.behind, one.packed.take()) for one in order
    ]


cdef int _add_key(
    _Packed packed, Parts *parts, const uint8_t *key, int64_t length, int64_t log_offset
) except -1:
    cdef uint32_t value = 0
    cdef int32_t absolute
    cdef uint8_t *cell
    if (
        _hash(parts.topic, parts.topic_length, &value)
        and _hash(<const uint8_t *>b"#", 1, &value)
        and _hash(key, length, &value)
    ):
        absolute = _absolute(value)
    else:
        topic = PyBytes_FromStringAndSize(<const char *>parts.topic, parts.topic_length)
        text = PyBytes_FromStringAndSize(<const char *>key, length)
        absolute = _plain.key_hash(topic + b"#" + text)
    cell = packed.more(20)
    _put32(cell, <uint32_t>absolute)
    _put64(cell + 4, <uint64_t>log_offset)
    _put64(cell + 12, <uint64_t>_i64(parts.stamp))
    return 0


def scan_keys(data, Py_ssize_t start, Py_ssize_t end, int64_t log_offset):
    """See `plain.scan_keys`."""
    cdef Py_buffer view
    cdef Parts parts
    cdef Py_ssize_t at = start
    cdef const uint8_t *p
    cdef const uint8_t *key
    cdef const uint8_t *stop
    cdef const uint8_t *last
    cdef int64_t length = 0
    cdef _Packed packed = _Packed()
    PyObject_GetBuffer(data, &view, PyBUF_SIMPLE)
    try:
        _range(view.len, start, end)
        while at < end:
            p = <const uint8_t *>view.buf + at
            if _parts(p, end - at, &parts) or _rest(&parts):
                break
            if parts.flag & TRANSACTION != ROLLBACK:
                key = _property(parts.text, parts.text_length, "UNIQ_KEY", 8, &length)
                if key != NULL:
                    _add_key(packed, &parts, key, length, log_offset + (at - start))
                key = _property(parts.text, parts.text_length, "KEYS", 4, &length)
                last = key + length if key != NULL else NULL
                while key != NULL and key < last:
                    stop = <const uint8_t *>memchr(key, 0x20, last - key)
                    if stop == NULL:
                        stop = last
                    if stop > key:
                        _add_key(packed, &parts, key, stop - key, log_offset + (at - start))
                    key = stop + 1
            at += parts.size
    finally:
        PyBuffer_Release(&view)
    return packed.take()


cdef int64_t _slots_of(Py_buffer *slots, Py_buffer *dirty) except -1:
    if slots.len < 4 or (dirty != NULL and dirty.len < (slots.len // 4 * 4 + 4095) // 4096):
        raise ValueError("slots or their marks are too short")
    return slots.len // 4


def enter_keys(keys, Py_ssize_t start, slots, dirty, head):
    """See `key_cells.enter_keys`."""
    cdef Py_buffer source, table, marks
    cdef int64_t number = head[0], room = head[1], began = head[2], stamp, seconds
    cdef int64_t count, slot, used = 0, wanted
    cdef int32_t hashed, before
    cdef const uint8_t *p
    cdef uint8_t *cell
    cdef uint8_t *entry
    cdef bytes out
    PyObject_GetBuffer(keys, &source, PyBUF_SIMPLE)
    try:
        PyObject_GetBuffer(slots, &table, PyBUF_WRITABLE)
        try:
            PyObject_GetBuffer(dirty, &marks, PyBUF_WRITABLE)
            try:
                count = _slots_of(&table, &marks)
                if start < 0 or start > source.len:
                    raise ValueError(f"no bytes from {start} on in {source.len}")
                wanted = (source.len - start) // 20
                if wanted > room - number:
                    wanted = room - number if room > number else 0
                out = PyBytes_FromStringAndSize(NULL, wanted * 20)
                cell = <uint8_t *>PyBytes_AS_STRING(out)
                p = <const uint8_t *>source.buf + start
                while wanted > 0:
                    hashed = _i32(p)
                    stamp = _i64(p + 12)
                    slot = (hashed if hashed > 0 else 0) % count * 4
                    entry = <uint8_t *>table.buf + slot
                    before = _i32(entry)
                    if before <= 0 or before > number:
                        before = 0
                    seconds = (stamp - began) // 1000 if began > 0 and stamp > began else 0
                    if seconds > 0x7FFFFFFF:
                        seconds = 0x7FFFFFFF
                    memcpy(cell, p, 12)
                    _put32(cell + 12, <uint32_t>seconds)
                    _put32(cell + 16, <uint32_t>before)
                    _put32(entry, <uint32_t>number)
                    (<uint8_t *>marks.buf)[slot >> 12] = 1
                    used += before == 0
                    if number <= 1:
                        began = stamp
                    number += 1
                    cell += 20
                    p += 20
                    wanted -= 1
            finally:
                PyBuffer_Release(&marks)
        finally:
            PyBuffer_Release(&table)
    finally:
        PyBuffer_Release(&source)
    return out, used


def link_cells(cells, int64_t number, slots):
    """See `key_cells.link_cells`."""
    cdef Py_buffer source, table
    cdef int64_t count, used = 0, bad = -1
    cdef Py_ssize_t at = 0
    cdef int32_t hashed, before
    cdef const uint8_t *p
    cdef uint8_t *entry
    PyObject_GetBuffer(cells, &source, PyBUF_SIMPLE)
    try:
        PyObject_GetBuffer(slots, &table, PyBUF_WRITABLE)
        try:
            count = _slots_of(&table, NULL)
            with nogil:
                while at + 20 <= source.len:
                    p = <const uint8_t *>source.buf + at
                    hashed = _i32(p)
                    before = _i32(p + 16)
                    entry = <uint8_t *>table.buf + (hashed if hashed > 0 else 0) % count * 4
                    if hashed < 0 or _i32(entry) != before:
                        bad = number
                        break
                    _put32(entry, <uint32_t>number)
                    used += before == 0
                    number += 1
                    at += 20
        finally:
            PyBuffer_Release(&table)
    finally:
        PyBuffer_Release(&source)
    return used, bad


def unlink_cells(cells, slots, dirty):
    """See `key_cells.unlink_cells`."""
    cdef Py_buffer source, table, marks
    cdef int64_t count, slot, freed = 0
    cdef Py_ssize_t at
    cdef int32_t hashed, before
    cdef const uint8_t *p
    PyObject_GetBuffer(cells, &source, PyBUF_SIMPLE)
    try:
        PyObject_GetBuffer(slots, &table, PyBUF_WRITABLE)
        try:
            PyObject_GetBuffer(dirty, &marks, PyBUF_WRITABLE)
            try:
                count = _slots_of(&table, &marks)
                at = source.len - source.len % 20 - 20
                while at >= 0:
                    p = <const uint8_t *>source.buf + at
                    hashed = _i32(p)
                    before = _i32(p + 16)
                    slot = (hashed if hashed > 0 else 0) % count * 4
                    _put32(<uint8_t *>table.buf + slot, <uint32_t>before)
                    (<uint8_t *>marks.buf)[slot >> 12] = 1
                    freed += before == 0
                    at -= 20
            finally:
                PyBuffer_Release(&marks)
        finally:
            PyBuffer_Release(&table)
    finally:
        PyBuffer_Release(&source)
    return freed


cdef inline str _text(const uint8_t *p, Py_ssize_t length):
    return PyUnicode_DecodeUTF8(<const char *>p, length, b"replace")


cdef dict _split(const uint8_t *p, int64_t length):
    cdef const uint8_t *end = p + length
    cdef const uint8_t *stop
    cdef const uint8_t *mid
    cdef dict found = {}
    while p < end:
        stop = <const uint8_t *>memchr(p, 2, end - p)
        if stop == NULL:
            stop = end
        mid = <const uint8_t *>memchr(p, 1, stop - p) if p < stop else NULL
        if mid != NULL and mid > p and stop - mid > 1:
            found[_text(p, mid - p)] = _text(mid + 1, stop - mid - 1)
        p = stop + 1
    return found


def split_properties(data):
    """See `plain.split_properties`."""
    cdef Py_buffer view
    PyObject_GetBuffer(data, &view, PyBUF_SIMPLE)
    try:
        return _split(<const uint8_t *>view.buf, view.len)
    finally:
        PyBuffer_Release(&view)


def split_record(data, Py_ssize_t at, *, bint check_crc=True):
    """See `plain.split_record`."""
    cdef Py_buffer view
    cdef Parts parts
    cdef int code
    cdef const uint8_t *p
    cdef Py_ssize_t born, store
    PyObject_GetBuffer(data, &view, PyBUF_SIMPLE)
    try:
        _range(view.len, at, view.len)
        p = <const uint8_t *>view.buf + at
        code = _accept(p, view.len - at, &parts, check_crc)
        if code:
            return code
        born = 20 if parts.flag & BORN_V6 else 8
        store = 20 if parts.flag & STORE_V6 else 8
        return (
            _text(parts.topic, parts.topic_length),
            _i32(p + 12),
            _i64(p + 20),
            _i64(p + 28),
            PyBytes_FromStringAndSize(<const char *>parts.body, parts.body_length),
            _split(parts.text, parts.text_length),
            _i32(p + 16),
            _i32(p + 36),
            _i64(p + 40),
            PyBytes_FromStringAndSize(<const char *>p + 48, born),
            _i64(parts.stamp),
            PyBytes_FromStringAndSize(<const char *>parts.stamp + 8, store),
            _i32(parts.body - 16),
            _i64(parts.body - 12),
            _i32(p + 8),
            _i32(p),
            _i32(p + 4),
        )
    finally:
        PyBuffer_Release(&view)


include "columns.pxi"
include "single.pxi"
include "match.pxi"
include "messages.pxi"
