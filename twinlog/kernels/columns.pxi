# Columns of many records at once, as Arrow lays them out. Included by ``_compiled.pyx``; described in
# ``columns.py``, the plain twin.
#
# Two passes: the first proves every record and adds up how much room each column can need, the
# second fills buffers that are large enough. Text that is not UTF-8 goes through Python, with the
# GIL; everything else needs no object.

from cpython.bytearray cimport PyByteArray_GET_SIZE
from libc.stdlib cimport malloc

from twinlog.kernels import columns as _columns

cdef enum:
    C_QUEUE = 0
    C_QUEUE_OFFSET = 1
    C_LOG_OFFSET = 2
    C_STORE_TIME = 3
    C_BORN_TIME = 4
    C_SIZE = 5
    C_BODY_CRC = 6
    C_FLAG = 7
    C_SYS_FLAG = 8
    C_RECONSUME = 9
    C_PREPARED = 10
    C_CRC_OK = 11
    C_TOPIC = 12
    C_BODY = 13
    C_RAW = 14
    C_BORN_HOST = 15
    C_STORE_HOST = 16
    C_KEY = 17
    C_TAGS = 18
    C_UNIQUE = 19
    C_PROPERTIES = 20
    C_COUNT = 21

cdef int64_t COLUMN_BYTES_MAX = 0x7FFFFFFF

cdef struct Text:
    int32_t *offsets
    uint8_t *values
    uint8_t *valid
    int64_t used
    int64_t rows

cdef struct Item:
    const uint8_t *name
    int64_t name_length
    const uint8_t *value
    int64_t value_length


cdef class _Column:
    """The buffers of one column while they are filled."""

    cdef bytearray offsets
    cdef bytearray values
    cdef bytearray valid
    cdef Text text

    def __init__(self, Py_ssize_t rows, Py_ssize_t room, bint nullable):
        self.offsets = PyByteArray_FromStringAndSize(NULL, 4 * (rows + 1))
        self.values = PyByteArray_FromStringAndSize(NULL, room)
        self.valid = bytearray((rows + 7) // 8) if nullable else None
        self.text.offsets = <int32_t *>PyByteArray_AS_STRING(self.offsets)
        self.text.values = <uint8_t *>PyByteArray_AS_STRING(self.values)
        self.text.valid = <uint8_t *>PyByteArray_AS_STRING(self.valid) if nullable else NULL
        self.text.used = 0
        self.text.rows = 0
        self.text.offsets[0] = 0

    cdef tuple take(self):
        PyByteArray_Resize(self.offsets, 4 * (self.text.rows + 1))
        PyByteArray_Resize(self.values, self.text.used)
        return (self.valid, self.offsets, self.values)


cdef inline void _put(Text *column, const uint8_t *p, int64_t length) noexcept nogil:
    """Add one value; with a validity buffer NULL stands for none."""
    if p != NULL:
        memcpy(column.values + column.used, p, length)
        column.used += length
        if column.valid != NULL:
            column.valid[column.rows >> 3] |= 1 << (column.rows & 7)
    column.rows += 1
    column.offsets[column.rows] = <int32_t>column.used


cdef int _put_text(Text *column, str text) except -1:
    cdef bytes data = text.encode("utf-8", "replace")
    _put(column, <const uint8_t *>PyBytes_AS_STRING(data), PyBytes_GET_SIZE(data))
    return 0


cdef class _Rows:
    """One call of `decode_columns`."""

    cdef uint64_t wanted
    cdef Py_ssize_t count
    cdef Parts *parts
    cdef uint8_t *odd
    cdef Item *items
    cdef Py_ssize_t items_room
    cdef uint8_t *fixed[12]      # numbers; the buffers are held by ``held``
    cdef Text *column[8]         # texts, from C_TOPIC on; NULL: not wanted
    cdef Text *names
    cdef Text *values
    cdef int32_t *entries
    cdef dict held
    cdef int64_t room_topic, room_body, room_raw, room_text, room_items, items_most

    def __cinit__(self, Py_ssize_t count):
        self.parts = <Parts *>malloc((count + 1) * sizeof(Parts))
        self.odd = <uint8_t *>malloc(count + 1)
        self.items = NULL
        self.held = {}
        if self.parts == NULL or self.odd == NULL:
            raise MemoryError()

    def __dealloc__(self):
        free(self.parts)
        free(self.odd)
        free(self.items)

    cdef int prove(
        self, const uint8_t *data, int64_t size, const int64_t *starts, Py_ssize_t count,
        int64_t log_offset, bint check_crc
    ) noexcept nogil:
        """Prove the records and add up the room they need; stop at the first bad one."""
        cdef Parts *one
        cdef Py_ssize_t i
        cdef int code
        cdef int64_t times, least
        for i in range(count):
            self.count = i
            if starts[i] < 0 or starts[i] > size:
                return SIZE
            one = &self.parts[i]
            code = _parts(data + starts[i], size - starts[i], one)
            if code:
                return code
            code = _rest(one)
            if code:
                return code
            if log_offset >= 0 and _i64(one.at + 28) != log_offset + starts[i]:
                return OFFSET
            if check_crc and one.body_length and (
                twinlog_crc32(0, one.body, one.body_length) & 0x7FFFFFFF != _u32(one.at + 8)
            ):
                return CRC
            self.odd[i] = not (
                _utf8(one.text, one.text + one.text_length)
                and _utf8(one.topic, one.topic + one.topic_length)
            )
            times = 3 if self.odd[i] else 1
            least = one.text_length // 4 + 1
            if (
                self.room_body + one.body_length > COLUMN_BYTES_MAX
                or self.room_text + times * one.text_length > COLUMN_BYTES_MAX
                or self.room_topic + times * one.topic_length > COLUMN_BYTES_MAX
            ):
                return COUNT
            self.room_topic += times * one.topic_length
            self.room_body += one.body_length
            self.room_raw += one.text_length
            self.room_text += times * one.text_length
            self.room_items += least
            if least > self.items_most:
                self.items_most = least
        self.count = count
        return FINE

    cdef int begin(self) except -1:
        """Make the buffers of the wanted columns."""
        cdef Py_ssize_t n = self.count
        cdef int i
        cdef int width[12]
        cdef int64_t room[8]
        cdef bytearray made
        cdef _Column column
        width[:] = [4, 8, 8, 8, 8, 4, 8, 4, 4, 4, 8, 1]
        room[:] = [
            self.room_topic, self.room_body, self.room_raw, 20 * n, 20 * n, self.room_text,
            self.room_text, self.room_text,
        ]
        for i in range(12):
            if self.wanted >> i & 1:
                made = PyByteArray_FromStringAndSize(NULL, n * width[i])
                self.fixed[i] = <uint8_t *>PyByteArray_AS_STRING(made)
                self.held[i] = made
        for i in range(8):
            self.column[i] = NULL
            if self.wanted >> (C_TOPIC + i) & 1:
                column = _Column(n, room[i], C_TOPIC + i >= C_KEY)
                self.column[i] = &column.text
                self.held[C_TOPIC + i] = column
        if self.wanted >> C_PROPERTIES & 1:
            made = PyByteArray_FromStringAndSize(NULL, 4 * (n + 1))
            self.entries = <int32_t *>PyByteArray_AS_STRING(made)
            self.entries[0] = 0
            column = _Column(self.room_items, self.room_text, False)
            self.names = &column.text
            other = _Column(self.room_items, self.room_text, False)
            self.values = &(<_Column>other).text
            self.held[C_PROPERTIES] = (made, column, other)
        if self.wanted >> C_KEY & 0xF:
            self.items = <Item *>malloc(self.items_most * sizeof(Item) + 1)
            if self.items == NULL:
                raise MemoryError()
        return 0

    cdef void numbers(self) noexcept nogil:
        """Fill the columns of fixed width, one after the other."""
        cdef Py_ssize_t i, n = self.count
        cdef int c
        cdef uint8_t *to
        cdef const uint8_t *p
        for c in range(12):
            if not self.wanted >> c & 1:
                continue
            to = self.fixed[c]
            for i in range(n):
                p = self.parts[i].at
                if c == C_QUEUE:
                    (<int32_t *>to)[i] = _i32(p + 12)
                elif c == C_QUEUE_OFFSET:
                    (<int64_t *>to)[i] = _i64(p + 20)
                elif c == C_LOG_OFFSET:
                    (<int64_t *>to)[i] = _i64(p + 28)
                elif c == C_STORE_TIME:
                    (<uint64_t *>to)[i] = <uint64_t>_i64(self.parts[i].stamp) * 1000
                elif c == C_BORN_TIME:
                    (<uint64_t *>to)[i] = <uint64_t>_i64(p + 40) * 1000
                elif c == C_SIZE:
                    (<int32_t *>to)[i] = _i32(p)
                elif c == C_BODY_CRC:
                    (<int64_t *>to)[i] = _u32(p + 8)
                elif c == C_FLAG:
                    (<int32_t *>to)[i] = _i32(p + 16)
                elif c == C_SYS_FLAG:
                    (<int32_t *>to)[i] = _i32(p + 36)
                elif c == C_RECONSUME:
                    (<int32_t *>to)[i] = _i32(self.parts[i].body - 16)
                elif c == C_PREPARED:
                    (<int64_t *>to)[i] = _i64(self.parts[i].body - 12)
                else:
                    to[i] = self.parts[i].body_length == 0 or (
                        twinlog_crc32(0, self.parts[i].body, self.parts[i].body_length)
                        & 0x7FFFFFFF == _u32(p + 8)
                    )

    cdef void texts(self) noexcept nogil:
        """Fill the columns of bytes and text, record by record while it is in the cache."""
        cdef Py_ssize_t i
        cdef Parts *one
        cdef uint64_t wanted = self.wanted
        for i in range(self.count):
            one = &self.parts[i]
            if wanted >> C_BODY & 1:
                _put(self.column[C_BODY - C_TOPIC], one.body, one.body_length)
            if wanted >> C_RAW & 1:
                _put(self.column[C_RAW - C_TOPIC], one.text, one.text_length)
            if wanted >> C_BORN_HOST & 1:
                _put(self.column[C_BORN_HOST - C_TOPIC], one.at + 48, one.stamp - one.at - 48)
            if wanted >> C_STORE_HOST & 1:
                _put(
                    self.column[C_STORE_HOST - C_TOPIC], one.stamp + 8,
                    one.body - one.stamp - 24,
                )
            if self.odd[i]:
                with gil:
                    self.odd_texts(i)
                continue
            if wanted >> C_TOPIC & 1:
                _put(self.column[0], one.topic, one.topic_length)
            if wanted >> C_KEY & 0xF:
                self.properties(i)

    cdef void properties(self, Py_ssize_t row) noexcept nogil:
        cdef const uint8_t *p = self.parts[row].text
        cdef const uint8_t *end = p + self.parts[row].text_length
        cdef const uint8_t *stop
        cdef const uint8_t *mid
        cdef Item *items = self.items
        cdef Item *key = NULL
        cdef Item *tags = NULL
        cdef Item *unique = NULL
        cdef int64_t n = 0, i, length
        while p < end:
            mid = p  # names are short: a loop beats memchr
            while mid < end and mid[0] != 1 and mid[0] != 2:
                mid += 1
            if mid == end:
                break
            if mid[0] == 2:
                p = mid + 1
                continue
            stop = <const uint8_t *>memchr(mid + 1, 2, end - mid - 1) if mid + 1 < end else NULL
            if stop == NULL:
                stop = end
            length = mid - p
            if length and stop - mid > 1:
                i = 0
                while i < n and not (
                    items[i].name_length == length and memcmp(items[i].name, p, length) == 0
                ):
                    i += 1
                items[i].name, items[i].name_length = p, length
                items[i].value, items[i].value_length = mid + 1, stop - mid - 1
                if i == n:
                    n += 1
                if length == 4 and memcmp(p, b"KEYS", 4) == 0:
                    key = &items[i]
                elif length == 4 and memcmp(p, b"TAGS", 4) == 0:
                    tags = &items[i]
                elif length == 8 and memcmp(p, b"UNIQ_KEY", 8) == 0:
                    unique = &items[i]
            p = stop + 1
        if self.wanted >> C_KEY & 1:
            _put_item(self.column[C_KEY - C_TOPIC], key)
        if self.wanted >> C_TAGS & 1:
            _put_item(self.column[C_TAGS - C_TOPIC], tags)
        if self.wanted >> C_UNIQUE & 1:
            _put_item(self.column[C_UNIQUE - C_TOPIC], unique)
        if self.wanted >> C_PROPERTIES & 1:
            for i in range(n):
                _put(self.names, items[i].name, items[i].name_length)
                _put(self.values, items[i].value, items[i].value_length)
            self.entries[row + 1] = <int32_t>self.names.rows

    cdef int odd_texts(self, Py_ssize_t row) except -1:
        """The same for a record whose texts are not all UTF-8."""
        cdef Parts *one = &self.parts[row]
        cdef dict found
        cdef int i
        if self.wanted >> C_TOPIC & 1:
            _put_text(self.column[0], _text(one.topic, one.topic_length))
        if not self.wanted >> C_KEY & 0xF:
            return 0
        found = _split(one.text, one.text_length)
        for i, name in enumerate(("KEYS", "TAGS", "UNIQ_KEY")):
            if self.column[C_KEY - C_TOPIC + i] == NULL:
                continue
            if name in found:
                _put_text(self.column[C_KEY - C_TOPIC + i], found[name])
            else:
                _put(self.column[C_KEY - C_TOPIC + i], NULL, 0)
        if self.wanted >> C_PROPERTIES & 1:
            for name, value in found.items():
                _put_text(self.names, name)
                _put_text(self.values, value)
            self.entries[row + 1] = <int32_t>self.names.rows
        return 0

    cdef dict take(self):
        cdef dict out = {}
        cdef tuple names = _columns.NAMES
        for i, made in self.held.items():
            if i < C_TOPIC:
                out[names[i]] = made
            elif i < C_PROPERTIES:
                out[names[i]] = (<_Column>made).take()
            else:
                out[names[i]] = (made[0], (<_Column>made[1]).take(), (<_Column>made[2]).take())
        return out


cdef inline void _put_item(Text *column, Item *item) noexcept nogil:
    if item == NULL:
        _put(column, NULL, 0)
    else:
        _put(column, item.value, item.value_length)


def decode_columns(data, starts, wanted, *, int64_t log_offset=-1, bint check_crc=False):
    """See `columns.decode_columns`."""
    cdef Py_buffer view
    cdef Py_buffer places
    cdef int code
    cdef _Rows rows
    PyObject_GetBuffer(data, &view, PyBUF_SIMPLE)
    try:
        PyObject_GetBuffer(starts, &places, PyBUF_SIMPLE)
        try:
            if places.len % 8:
                raise ValueError("starts are 64-bit numbers")
            rows = _Rows(places.len // 8)
            rows.wanted = _columns.mask(wanted)
            with nogil:
                code = rows.prove(
                    <const uint8_t *>view.buf, view.len, <const int64_t *>places.buf,
                    places.len // 8, log_offset, check_crc
                )
            rows.begin()
            with nogil:
                rows.numbers()
                rows.texts()
            return rows.count, code, rows.take()
        finally:
            PyBuffer_Release(&places)
    finally:
        PyBuffer_Release(&view)


def record_starts(data, Py_ssize_t start, Py_ssize_t end):
    """See `columns.record_starts`."""
    cdef Py_buffer view
    cdef Parts parts
    cdef int code = FINE
    cdef Py_ssize_t at = start, count = 0, room = 1024
    cdef bytearray out
    cdef const uint8_t *p
    PyObject_GetBuffer(data, &view, PyBUF_SIMPLE)
    try:
        _range(view.len, start, end)
        out = PyByteArray_FromStringAndSize(NULL, 8 * room)
        while at < end:
            p = <const uint8_t *>view.buf + at
            if end - at >= 8 and _u32(p + 4) == MAGIC_BLANK:
                code = BLANK
                break
            code = _parts(p, end - at, &parts)
            if code == FINE:
                code = _rest(&parts)
            if code:
                break
            if count == room:
                room *= 2
                PyByteArray_Resize(out, 8 * room)
            (<int64_t *>PyByteArray_AS_STRING(out))[count] = at
            count += 1
            at += parts.size
    finally:
        PyBuffer_Release(&view)
    PyByteArray_Resize(out, 8 * count)
    return out, at, code
