# What one small frame and one section cost: single calls instead of a dozen. Included by
# ``_compiled.pyx``; described in ``single.py``, the plain twin.

cdef enum:
    HEADER_BYTES = 48
    ENTRY_BYTES = 48
    TRAVELS = 36
    COVERED = 4
    NEST_MAX = 4
    ITEMS_LIMIT = 65536
    STRIDE_BYTES = 16384
    AHEAD_BYTES = 4096
    LINE_BYTES = 64

cdef uint32_t FRAME_MAGIC = 0x54574C31
cdef uint8_t FRAME_VERSION = 1


cdef inline uint64_t _u64(const uint8_t *p) noexcept nogil:
    return <uint64_t>_u32(p) << 32 | _u32(p + 4)


cdef inline uint16_t _u16(const uint8_t *p) noexcept nogil:
    return <uint16_t>(p[0] << 8 | p[1])


cdef struct Cursor:
    const uint8_t *at
    const uint8_t *end


cdef inline const uint8_t *_take(Cursor *cursor, uint64_t size) noexcept nogil:
    """Bytes that the cursor passes; NULL when there are not so many."""
    cdef const uint8_t *found = cursor.at
    if <uint64_t>(cursor.end - found) < size:
        return NULL
    cursor.at += size
    return found


cdef int64_t _length(Cursor *cursor, int width) noexcept nogil:
    """A length of 1, 2 or 4 bytes that the cursor passes; -1 when it is not all there."""
    cdef const uint8_t *p = _take(cursor, width)
    if p == NULL:
        return -1
    return p[0] if width == 1 else _u16(p) if width == 2 else _u32(p)


cdef object _plain_value(Cursor *cursor, int depth):
    """One value; NotImplemented for what is broken, or has its place in the general reader."""
    cdef const uint8_t *p = _take(cursor, 1)
    cdef uint8_t kind
    cdef int64_t length = -1
    if p == NULL:
        return NotImplemented
    kind = p[0]
    if kind < 0x80:
        return <int>kind
    if kind >= 0xE0:
        return <int>(<signed char>kind)
    if 0xA0 <= kind < 0xC0:
        return _plain_text(cursor, kind & 0x1F)
    if 0x90 <= kind < 0xA0:
        return _plain_list(cursor, kind & 0x0F, depth)
    if kind == 0xC0:
        return None
    if kind == 0xC2:
        return False
    if kind == 0xC3:
        return True
    if 0xC4 <= kind <= 0xC6:
        length = _length(cursor, 1 << (kind - 0xC4))
        p = _take(cursor, length) if length >= 0 else NULL
        return NotImplemented if p == NULL else PyBytes_FromStringAndSize(<const char *>p, length)
    if 0xD9 <= kind <= 0xDB:
        length = _length(cursor, 1 << (kind - 0xD9))
        return NotImplemented if length < 0 else _plain_text(cursor, length)
    if 0xCC <= kind <= 0xCF or 0xD0 <= kind <= 0xD3:
        p = _take(cursor, 1 << (kind & 3))
        if p == NULL:
            return NotImplemented
        if kind == 0xCC:
            return <int>p[0]
        if kind == 0xCD:
            return <int>_u16(p)
        if kind == 0xCE:
            return _u32(p)
        if kind == 0xCF:
            return _u64(p)
        if kind == 0xD0:
            return <int>(<signed char>p[0])
        if kind == 0xD1:
            return <int>_i16(p)
        if kind == 0xD2:
            return <int>_i32(p)
        return _i64(p)
    if kind == 0xDC or kind == 0xDD:
        length = _length(cursor, 2 if kind == 0xDC else 4)
        return NotImplemented if length < 0 else _plain_list(cursor, length, depth)
    return NotImplemented


cdef object _plain_text(Cursor *cursor, int64_t length):
    cdef const uint8_t *p = _take(cursor, length)
    if p == NULL or not _utf8(p, p + length):
        return NotImplemented
    return PyUnicode_DecodeUTF8(<const char *>p, length, NULL)


cdef object _plain_list(Cursor *cursor, int64_t count, int depth):
    cdef list found = []
    cdef object value
    if depth >= NEST_MAX or count > ITEMS_LIMIT or count > cursor.end - cursor.at:
        return NotImplemented
    while count:
        value = _plain_value(cursor, depth + 1)
        if value is NotImplemented:
            return NotImplemented
        found.append(value)
        count -= 1
    return found


cdef object _plain_fields(const uint8_t *p, Py_ssize_t size):
    """The map in exactly these bytes; NotImplemented as in `_plain_value`."""
    cdef Cursor cursor
    cdef const uint8_t *head
    cdef int64_t count
    cdef dict found = {}
    cdef object key, value
    cursor.at = p
    cursor.end = p + size
    head = _take(&cursor, 1)
    if head == NULL:
        return NotImplemented
    if 0x80 <= head[0] < 0x90:
        count = head[0] & 0x0F
    elif head[0] == 0xDE:
        count = _length(&cursor, 2)
    else:
        return NotImplemented
    if count < 0:
        return NotImplemented
    while count:
        key = _plain_value(&cursor, NEST_MAX)
        if type(key) is not str:
            return NotImplemented
        value = _plain_value(&cursor, 0)
        if value is NotImplemented:
            return NotImplemented
        found[key] = value
        count -= 1
    return found if cursor.at == cursor.end else NotImplemented


def take_frame(
    data, Py_ssize_t at, Py_ssize_t end, Py_ssize_t fields_max, Py_ssize_t payload_max
):
    """See `single.take_frame`."""
    cdef Py_buffer view
    PyObject_GetBuffer(data, &view, PyBUF_SIMPLE)
    try:
        _range(view.len, at, end)
        return _take_frame(<const uint8_t *>view.buf + at, end - at, fields_max, payload_max)
    finally:
        PyBuffer_Release(&view)


cdef object _take_frame(
    const uint8_t *p, Py_ssize_t there, Py_ssize_t fields_max, Py_ssize_t payload_max
):
    cdef const uint8_t *body = p + HEADER_BYTES
    cdef uint64_t size, payload
    cdef uint32_t flags
    cdef uint32_t crc = 0
    cdef object fields
    if there < HEADER_BYTES or _u32(p) != FRAME_MAGIC or p[4] != FRAME_VERSION:
        return None
    if twinlog_crc32c(0, p, 44) != _u32(p + 44):
        return None
    size, payload, flags = _u32(p + 8), _u32(p + 12), _u16(p + 6)
    if size > <uint64_t>fields_max or payload > <uint64_t>payload_max:
        return None
    if <uint64_t>(there - HEADER_BYTES) < size + payload:
        return None
    if twinlog_crc32c(0, body, size) != _u32(p + 36):
        return None
    if payload and not flags & COVERED:
        crc = twinlog_crc32c(0, body + size, payload)
    if crc != _u32(p + 40):
        return None
    fields = _plain_fields(body, size)
    if fields is NotImplemented:
        return None
    return (
        <Py_ssize_t>(HEADER_BYTES + size + payload),
        <int>p[5],
        flags,
        _u64(p + 16),
        _u64(p + 24),
        _u32(p + 32),
        fields,
        PyBytes_FromStringAndSize(<const char *>body + size, payload),
    )


def frame_head(
    int kind,
    int flags,
    uint64_t epoch,
    uint64_t request,
    uint32_t names,
    bytes fields not None,
    uint32_t payload,
    uint32_t payload_crc,
):
    """See `single.frame_head`."""
    cdef Py_ssize_t size = PyBytes_GET_SIZE(fields)
    cdef bytes made = PyBytes_FromStringAndSize(NULL, HEADER_BYTES + size)
    cdef uint8_t *p = <uint8_t *>PyBytes_AS_STRING(made)
    _put32(p, FRAME_MAGIC)
    p[4] = FRAME_VERSION
    p[5] = kind
    p[6] = flags >> 8 & 0xFF
    p[7] = flags & 0xFF
    _put32(p + 8, <uint32_t>size)
    _put32(p + 12, payload)
    _put64(p + 16, epoch)
    _put64(p + 24, request)
    _put32(p + 32, names)
    _put32(p + 36, twinlog_crc32c(0, <const uint8_t *>PyBytes_AS_STRING(fields), size))
    _put32(p + 40, payload_crc)
    _put32(p + 44, twinlog_crc32c(0, p, 44))
    memcpy(p + HEADER_BYTES, PyBytes_AS_STRING(fields), size)
    return made


cdef bytes _entry(
    uint64_t start,
    uint32_t length,
    uint32_t count,
    uint32_t epoch,
    uint32_t crc,
    uint64_t stamp,
    uint64_t flushed,
):
    """The packed batch entry of records."""
    cdef bytes made = PyBytes_FromStringAndSize(NULL, ENTRY_BYTES)
    cdef uint8_t *p = <uint8_t *>PyBytes_AS_STRING(made)
    _put64(p, start)
    _put32(p + 8, length)
    _put32(p + 12, count)
    _put32(p + 16, epoch)
    _put32(p + 20, crc)
    _put64(p + 24, stamp)
    _put32(p + 32, 0)
    _put64(p + 36, flushed)
    _put32(p + 44, twinlog_crc32c(0, p, 44))
    return made


cdef struct Wanted:
    const uint8_t *topic
    int64_t topic_length
    int32_t queue
    int64_t body_max
    uint32_t store_bit
    const uint8_t *sequence      # NULL: the first record has none
    int64_t sequence_length


cdef struct Stamp:
    uint64_t log_offset
    uint64_t queue_offset
    uint64_t stamp
    const uint8_t *host
    Py_ssize_t host_length


cdef inline bint _same(const uint8_t *p, const uint8_t *q, int64_t length) noexcept nogil:
    """Whether two places hold the same bytes; short ones without a call."""
    cdef uint64_t a, b
    cdef int64_t at = 0
    if length < 8 or length > 64:
        return memcmp(p, q, length) == 0
    while at < length - 8:
        memcpy(&a, p + at, 8)
        memcpy(&b, q + at, 8)
        if a != b:
            return False
        at += 8
    memcpy(&a, p + length - 8, 8)
    memcpy(&b, q + length - 8, 8)
    return a == b


cdef inline bint _like_the_last(
    const uint8_t *p, int64_t left, Parts *parts, Parts *last, Wanted *wanted
) noexcept nogil:
    """Whether a record passes because its flags and all behind its body are the last one's.

    Then ``parts`` has all but topic and text. The body is not looked at.
    """
    cdef int64_t rest
    if last.at == NULL or _parts(p, left, parts):
        return False
    if parts.flag != last.flag or _i32(p + 12) != wanted.queue:
        return False
    if _i32(parts.body - 4) < 0 or parts.body_length > wanted.body_max:
        return False
    rest = last.size - (last.body - last.at) - last.body_length
    if parts.size - (parts.body - p) - parts.body_length != rest:
        return False
    if _u32(p + 4) != _u32(last.at + 4):
        return False
    return _same(parts.body + parts.body_length, last.body + last.body_length, rest)


cdef inline bint _names(Parts *parts, Wanted *wanted) noexcept nogil:
    """Whether a record carries the producer's sequence, or none where none is wanted."""
    cdef int64_t found = 0
    cdef const uint8_t *value = _property(parts.text, parts.text_length, "TL_SEQ", 6, &found)
    if value == NULL or wanted.sequence == NULL:
        return value == wanted.sequence
    return found == wanted.sequence_length and memcmp(value, wanted.sequence, found) == 0


cdef inline void _stamp_record(
    uint8_t *p, uint8_t *stamp, uint64_t number, uint64_t place, Stamp *values
) noexcept nogil:
    _put64(p + 20, number)
    _put64(p + 28, place)
    _put64(stamp, values.stamp)
    if values.host_length == 8:  # of a known length it is one store, not a call
        memcpy(stamp + 8, values.host, 8)
    else:
        memcpy(stamp + 8, values.host, 20)


cdef int64_t _place(
    const uint8_t *p, int64_t length, int64_t count, Wanted *wanted, uint8_t *to, Stamp *stamp,
    uint32_t *digest, uint32_t *crc
) noexcept nogil:
    """Check, copy, number and stamp; how much was written, which is all of it, or -1 - that.

    A record is copied while it is looked at, and the log's memory a page ahead of it is asked for,
    so that its stores need not wait for what they overwrite to be read. The CRC follows in strides
    that stay in the nearest cache.
    """
    cdef Parts both[2]
    cdef Parts *parts
    cdef Parts *last = &both[1]
    cdef int64_t at = 0, done = 0, number = 0, asked = 0
    last.at = NULL
    while at < length:
        while asked < length and asked < at + AHEAD_BYTES:
            _prefetch(to + asked)
            asked += LINE_BYTES
        parts = &both[number & 1]
        if _like_the_last(p + at, length - at, parts, last, wanted):
            if twinlog_crc32(0, parts.body, parts.body_length) & 0x7FFFFFFF != _u32(p + at + 8):
                return -1 - at
        elif _check_record(
            p + at, length - at, parts, wanted.topic, wanted.topic_length, wanted.queue,
            wanted.body_max, wanted.store_bit, True, False,
        ) or (number == 0 and not _names(parts, wanted)):
            return -1 - at
        if wanted.sequence != NULL:
            digest[0] = twinlog_crc32c(digest[0], p + at + 8, 4)
            digest[0] = twinlog_crc32c(digest[0], parts.body - 4, 4)
        memcpy(to + at, p + at, parts.size)
        _stamp_record(
            to + at, to + (parts.stamp - p), stamp.queue_offset + number, stamp.log_offset + at,
            stamp,
        )
        last = parts
        number += 1
        at += parts.size
        if at - done >= STRIDE_BYTES or at == length:
            crc[0] = twinlog_crc32c(crc[0], to + done, at - done)
            done = at
    return done if number == count and number else -1 - done


cdef int64_t _put_section(
    data, int64_t count, bytes topic, int32_t queue, bytes sequence, Wanted *wanted,
    Py_buffer *room, Py_ssize_t at, bint exactly, Stamp *stamp, uint32_t *digest, uint32_t *crc
) except -2:
    """Place a section at byte ``at`` of the room; its length, or -1: it was not placed.

    With ``exactly`` it must fill the room. Of ``wanted`` and ``stamp`` the rest is filled in
    already. See `single.place_section`.
    """
    cdef Py_buffer view
    cdef int64_t done
    wanted.topic = <const uint8_t *>PyBytes_AS_STRING(topic)
    wanted.topic_length = PyBytes_GET_SIZE(topic)
    wanted.queue = queue
    wanted.sequence = NULL
    if sequence is not None:
        wanted.sequence = <const uint8_t *>PyBytes_AS_STRING(sequence)
        wanted.sequence_length = PyBytes_GET_SIZE(sequence)
    PyObject_GetBuffer(data, &view, PyBUF_SIMPLE)
    try:
        if stamp.host_length != (20 if wanted.store_bit else 8):
            raise ValueError("the room is not the section's, or the host of another family")
        if view.len > room.len - at or (exactly and view.len != room.len):
            raise ValueError("the room is not the section's, or the host of another family")
        done = _place(
            <const uint8_t *>view.buf, view.len, count, wanted, <uint8_t *>room.buf + at, stamp,
            digest, crc,
        )
        if done < 0:
            memset(<uint8_t *>room.buf + at, 0, -1 - done)
            return -1
        digest[0] = 0 if sequence is None else digest[0] or 1
        return done
    finally:
        PyBuffer_Release(&view)


cdef inline int _set_up(tuple limits, bytes host, Wanted *wanted, Stamp *stamp) except -1:
    wanted.body_max = limits[0]
    wanted.store_bit = STORE_V6 if limits[1] == 6 else 0
    stamp.host = <const uint8_t *>PyBytes_AS_STRING(host)
    stamp.host_length = PyBytes_GET_SIZE(host)
    return 0


def place_sections(
    list sections not None,
    tuple limits not None,
    target,
    tuple place not None,
    uint32_t crc,
):
    """See `single.place_sections`."""
    cdef Py_buffer room
    cdef Wanted wanted
    cdef Stamp stamp
    cdef uint32_t digest, after
    cdef int64_t length
    cdef Py_ssize_t at = 0
    cdef uint64_t log_offset = place[0]
    cdef bytes host = <bytes?>place[2]
    cdef list digests = []
    cdef tuple row
    stamp.stamp = place[1]
    _set_up(limits, host, &wanted, &stamp)
    PyObject_GetBuffer(target, &room, PyBUF_WRITABLE)
    try:
        for row in sections:
            stamp.log_offset = log_offset + at
            stamp.queue_offset = row[5]
            digest, after = 0, crc
            length = _put_section(
                row[0], row[1], <bytes?>row[2], row[3], row[4], &wanted, &room, at, False, &stamp,
                &digest, &after,
            )
            if length < 0:
                break
            at += length
            crc = after
            digests.append(digest)
    finally:
        PyBuffer_Release(&room)
    return digests, crc


def place_section(
    data,
    Py_ssize_t count,
    bytes topic not None,
    int32_t queue,
    bytes sequence,
    tuple limits not None,
    target,
    tuple place not None,
    tuple entry not None,
):
    """See `single.place_section`."""
    cdef Py_buffer room
    cdef Wanted wanted
    cdef Stamp stamp
    cdef uint32_t crc = 0, digest = 0
    cdef int64_t length
    cdef bytes host = <bytes?>place[3]
    stamp.log_offset = place[0]
    stamp.queue_offset = place[1]
    stamp.stamp = place[2]
    _set_up(limits, host, &wanted, &stamp)
    PyObject_GetBuffer(target, &room, PyBUF_WRITABLE)
    try:
        length = _put_section(
            data, count, topic, queue, sequence, &wanted, &room, 0, True, &stamp, &digest, &crc
        )
    finally:
        PyBuffer_Release(&room)
    if length < 0:
        return None
    return digest, _entry(place[0], length, count, entry[0], crc, place[2], entry[1])


cdef bint _holds(const uint8_t *p, Py_ssize_t length, bytes wanted):
    """Whether the bytes hold others, at any place."""
    cdef const uint8_t *name = <const uint8_t *>PyBytes_AS_STRING(wanted)
    cdef Py_ssize_t size = PyBytes_GET_SIZE(wanted)
    cdef const uint8_t *end = p + length
    while end - p >= size:
        p = <const uint8_t *>memchr(p, name[0], end - p - size + 1)
        if p == NULL:
            return False
        if memcmp(p, name, size) == 0:
            return True
        p += 1
    return False


def place_batch(bytes entry not None, data, target, tuple place not None, bytes control not None):
    """See `single.place_batch`."""
    cdef Py_buffer view
    cdef Py_buffer room
    cdef uint64_t offset = place[0]
    cdef uint32_t epoch = place[1]
    cdef uint64_t flushed = place[2]
    cdef const uint8_t *p = <const uint8_t *>PyBytes_AS_STRING(entry)
    cdef const uint8_t *from_
    cdef uint8_t *to
    cdef uint64_t stamp
    if PyBytes_GET_SIZE(entry) != TRAVELS or _u64(p) != offset:
        return None
    if _u32(p + 16) != epoch or _u32(p + 32) != 0:
        return None
    if not PyBytes_GET_SIZE(control):
        raise ValueError("a name has at least a byte")
    PyObject_GetBuffer(data, &view, PyBUF_SIMPLE)
    try:
        PyObject_GetBuffer(target, &room, PyBUF_WRITABLE)
        try:
            if room.len != view.len:
                raise ValueError("the room is not the batch's")
            if view.len < 8 or <uint64_t>view.len != _u32(p + 8):
                return None
            from_, to = <const uint8_t *>view.buf, <uint8_t *>room.buf
            if _u32(p + 12) == 1 and _holds(from_, view.len, control):
                return None
            memcpy(to, from_, view.len)
            if twinlog_crc32c(0, to, view.len) != _u32(p + 20):
                return None
            stamp = _u64(p + 24)
            return _entry(
                offset, view.len, _u32(p + 12), epoch, _u32(p + 20), stamp, flushed
            ), stamp
        finally:
            PyBuffer_Release(&room)
    finally:
        PyBuffer_Release(&view)
