import com.alibaba.fastjson.JSON;
import com.alibaba.fastjson.JSONArray;
import com.alibaba.fastjson.JSONObject;
import com.alibaba.fastjson.serializer.SerializerFeature;
import java.io.BufferedReader;
import java.io.File;
import java.io.InputStreamReader;
import java.io.PrintStream;
import java.net.InetSocketAddress;
import java.nio.ByteBuffer;
import java.nio.charset.StandardCharsets;
import java.nio.file.Files;
import java.util.ArrayList;
import java.util.HexFormat;
import java.util.List;
import java.util.Map;
import java.util.TreeMap;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.ConcurrentMap;
import org.apache.rocketmq.broker.schedule.ScheduleMessageService;
import org.apache.rocketmq.common.BrokerConfig;
import org.apache.rocketmq.common.TopicConfig;
import org.apache.rocketmq.common.message.MessageAccessor;
import org.apache.rocketmq.common.message.MessageDecoder;
import org.apache.rocketmq.common.message.MessageExt;
import org.apache.rocketmq.common.message.MessageExtBrokerInner;
import org.apache.rocketmq.common.sysflag.MessageSysFlag;
import org.apache.rocketmq.store.DefaultMessageStore;
import org.apache.rocketmq.store.PutMessageResult;
import org.apache.rocketmq.store.QueryMessageResult;
import org.apache.rocketmq.store.SelectMappedBufferResult;
import org.apache.rocketmq.store.config.FlushDiskType;
import org.apache.rocketmq.store.config.MessageStoreConfig;
import org.apache.rocketmq.store.queue.ConsumeQueueInterface;
import org.apache.rocketmq.store.queue.CqUnit;
import org.apache.rocketmq.store.queue.ReferredIterator;
import org.apache.rocketmq.store.stats.BrokerStatsManager;
import org.apache.rocketmq.store.timer.TimerMessageStore;

/**
 * The real RocketMQ as a judge of store directories: one JSON request per line on standard input,
 * one JSON answer per line on standard output, one JVM for a whole test session.
 *
 * <p>Requests: open {dir, commit_log_size, queue_size, commit_logs?, batch_queue_size?, light?,
 * timers?}, serve {millis} (its own threads go on for so long), dump, query {topic, key, begin?, end?}, time {topic, queue, timestamp}, put {messages: [{topic, queue,
 * body (hex), properties, sys_flag?, flag?, born_host?, inner?: [[body, properties]]}]}, close,
 * consume {group, topics} (all that the group gets of them and of its retry topic),
 * check {timeout} (one round of questions about open transactions, of halves older than so many ms),
 * filter {cases: [[expression, properties]]}, pack and unpack {rows: [[flag, level, hex]]}. Opening
 * changes a directory, so callers hand over copies.
 */
public final class Judge {
    private static final int RESERVED_HOURS = 24 * 366 * 100; // what tests store may be of 1970

    private DefaultMessageStore store;
    private TimerMessageStore timers;
    private ScheduleMessageService delays;
    private BrokerConfig broker;

    public static void main(String[] args) throws Exception {
        PrintStream out = new PrintStream(System.out, true, StandardCharsets.UTF_8);
        System.setOut(System.err);
        BufferedReader in = new BufferedReader(
            new InputStreamReader(System.in, StandardCharsets.UTF_8));
        Judge judge = new Judge();
        for (String line = in.readLine(); line != null; line = in.readLine()) {
            JSONObject answer;
            try {
                answer = judge.answer(JSON.parseObject(line));
            } catch (Throwable problem) {
                problem.printStackTrace();
                answer = new JSONObject();
                answer.put("error", String.valueOf(problem));
            }
            out.println(JSON.toJSONString(answer, SerializerFeature.WriteMapNullValue,
                SerializerFeature.DisableCircularReferenceDetect));
        }
        System.exit(0);
    }

    private JSONObject answer(JSONObject request) throws Exception {
        switch (request.getString("op")) {
            case "open": return open(request);
            case "dump": return dump();
            case "query": return query(request);
            case "time": return time(request);
            case "put": return put(request);
            case "filter": return Filters.judge(request);
            case "pack": return Bodies.judge(request, true);
            case "unpack": return Bodies.judge(request, false);
            case "serve": return serve(request);
            case "check": return Halves.check(store, broker, request.getLongValue("timeout"));
            case "consume": return Groups.consume(store, broker, request.getString("group"),
                request.getJSONArray("topics"));
            case "close": return close();
            default: throw new IllegalArgumentException(request.getString("op"));
        }
    }

    private JSONObject open(JSONObject request) throws Exception {
        String dir = request.getString("dir");
        MessageStoreConfig config = new MessageStoreConfig();
        config.setStorePathRootDir(dir);
        String logs = request.getString("commit_logs");
        config.setStorePathCommitLog(logs != null ? logs : dir + File.separator + "commitlog");
        config.setMappedFileSizeCommitLog(request.getIntValue("commit_log_size"));
        config.setMappedFileSizeConsumeQueue(request.getIntValue("queue_size"));
        if (request.containsKey("batch_queue_size")) {
            config.setMapperFileSizeBatchConsumeQueue(request.getIntValue("batch_queue_size"));
        }
        config.setEnableLmq(request.getBooleanValue("light"));
        config.setEnableMultiDispatch(request.getBooleanValue("light"));
        config.setMaxHashSlotNum(100);
        config.setMaxIndexNum(400);
        config.setFlushDiskType(FlushDiskType.ASYNC_FLUSH);
        boolean timed = request.getBooleanValue("timers");
        config.setTimerWheelEnable(timed);
        config.setCleanResourceInterval(3_600_000);
        config.setDiskMaxUsedSpaceRatio(99);
        config.setFileReservedTime(RESERVED_HOURS);
        ConcurrentMap<String, TopicConfig> topics = new ConcurrentHashMap<>();
        File table = new File(dir, "config/topics.json");
        if (table.exists()) {
            JSONObject parsed = JSON.parseObject(Files.readString(table.toPath()));
            JSONObject named = parsed.getJSONObject("topicConfigTable");
            for (String name : named.keySet()) {
                topics.put(name, named.getObject(name, TopicConfig.class));
            }
        }
        broker = new BrokerConfig();
        broker.setBrokerIP1("127.0.0.1");
        BrokerStatsManager statistics = new BrokerStatsManager("judge", false);
        store = new DefaultMessageStore(
            config, statistics, (topic, queue, offset, tags, time, map, properties) -> { },
            broker, topics);
        timers = timed ? Timers.beside(store, config, statistics) : null;
        delays = request.getBooleanValue("delays") ? Delays.beside(store, config, broker) : null;
        boolean loaded = store.load() && (timers == null || timers.load())
            && (delays == null || delays.load());
        JSONObject answer = new JSONObject();
        answer.put("loaded", loaded);
        if (loaded) {
            store.start();
            waitForDispatch();
            if (timers != null) {
                timers.start();
                timers.setShouldRunningDequeue(true);
            }
            if (delays != null) {
                delays.start();
            }
            answer.put("min_offset", store.getMinPhyOffset());
            answer.put("max_offset", store.getMaxPhyOffset());
            answer.put("topics", new ArrayList<>(topics.keySet()));
        }
        return answer;
    }

    private void waitForDispatch() throws InterruptedException {
        long deadline = System.currentTimeMillis() + 20_000;
        while (store.dispatchBehindBytes() > 0 && System.currentTimeMillis() < deadline) {
            Thread.sleep(5);
        }
    }

    private JSONObject dump() throws Exception {
        JSONArray messages = new JSONArray();
        JSONArray queues = new JSONArray();
        Map<String, ConcurrentMap<Integer, ConsumeQueueInterface>> table =
            new TreeMap<>(store.getConsumeQueueTable());
        for (Map.Entry<String, ConcurrentMap<Integer, ConsumeQueueInterface>> topic
                : table.entrySet()) {
            for (Map.Entry<Integer, ConsumeQueueInterface> entry
                    : new TreeMap<>(topic.getValue()).entrySet()) {
                ConsumeQueueInterface queue = entry.getValue();
                JSONObject one = new JSONObject();
                one.put("topic", topic.getKey());
                one.put("queue_id", entry.getKey());
                one.put("min", queue.getMinOffsetInQueue());
                one.put("max", queue.getMaxOffsetInQueue());
                JSONArray entries = new JSONArray();
                JSONArray counts = new JSONArray();
                long next = queue.getMinOffsetInQueue();
                while (next < queue.getMaxOffsetInQueue()) {
                    long before = next;
                    ReferredIterator<CqUnit> units = queue.iterateFrom(next); // one file at most
                    while (units != null && units.hasNext()) {
                        CqUnit unit = units.next();
                        entries.add(List.of(unit.getQueueOffset(), unit.getPos(),
                            unit.getSize(), unit.getTagsCode()));
                        counts.add(unit.getBatchNum());
                        messages.add(message(unit.getPos(), unit.getSize()));
                        next = unit.getQueueOffset() + unit.getBatchNum();
                    }
                    if (units != null) {
                        units.release();
                    }
                    if (next == before) {
                        throw new IllegalStateException("no entry at queue offset " + next);
                    }
                }
                one.put("entries", entries);
                one.put("counts", counts);
                queues.add(one);
            }
        }
        JSONObject answer = new JSONObject();
        answer.put("queues", queues);
        answer.put("messages", messages);
        return answer;
    }

    private JSONObject message(long offset, int size) throws Exception {
        SelectMappedBufferResult bytes = store.getCommitLog().getMessage(offset, size);
        if (bytes == null) {
            return null;
        }
        try {
            ByteBuffer buffer = bytes.getByteBuffer();
            MessageExt one = MessageDecoder.decode(buffer, true, false, false, false, true);
            JSONObject found = new JSONObject();
            found.put("topic", one.getTopic());
            found.put("queue_id", one.getQueueId());
            found.put("queue_offset", one.getQueueOffset());
            found.put("physical_offset", one.getCommitLogOffset());
            found.put("size", one.getStoreSize());
            found.put("sys_flag", one.getSysFlag());
            found.put("flag", one.getFlag());
            found.put("born_timestamp", one.getBornTimestamp());
            found.put("store_timestamp", one.getStoreTimestamp());
            found.put("body_crc", one.getBodyCRC());
            byte[] body = one.getBody();
            found.put("body", body == null ? "" : HexFormat.of().formatHex(body));
            Map<String, String> properties = one.getProperties();
            found.put("properties", properties == null ? Map.of() : new TreeMap<>(properties));
            if (MessageSysFlag.check(one.getSysFlag(), MessageSysFlag.INNER_BATCH_FLAG)) {
                found.put("inner", Batches.unfold(one));
            }
            return found;
        } finally {
            bytes.release();
        }
    }

    private JSONObject query(JSONObject request) throws Exception {
        QueryMessageResult result = store.queryMessage(
            request.getString("topic"), request.getString("key"), 64, request.getLongValue("begin"),
            request.containsKey("end") ? request.getLongValue("end") : Long.MAX_VALUE);
        JSONArray offsets = new JSONArray();
        for (ByteBuffer buffer : result.getMessageBufferList()) {
            offsets.add(buffer.getLong(buffer.position() + 28));
        }
        result.release();
        JSONObject answer = new JSONObject();
        answer.put("physical_offsets", offsets);
        return answer;
    }

    private JSONObject time(JSONObject request) {
        JSONObject answer = new JSONObject();
        answer.put("offset", store.getOffsetInQueueByTime(
            request.getString("topic"), request.getIntValue("queue"),
            request.getLongValue("timestamp")));
        return answer;
    }

    private JSONObject put(JSONObject request) throws InterruptedException {
        JSONArray results = new JSONArray();
        JSONArray messages = request.getJSONArray("messages");
        for (int i = 0; i < messages.size(); i++) {
            JSONObject one = messages.getJSONObject(i);
            MessageExtBrokerInner inner = new MessageExtBrokerInner();
            inner.setTopic(one.getString("topic"));
            inner.setQueueId(one.getIntValue("queue"));
            inner.setSysFlag(one.getIntValue("sys_flag"));
            inner.setFlag(one.getIntValue("flag"));
            if (one.containsKey("inner")) {
                Batches.fold(inner, one.getJSONArray("inner"));
            } else {
                inner.setBody(HexFormat.of().parseHex(one.getString("body")));
            }
            JSONObject properties = one.getJSONObject("properties");
            for (String key : properties.keySet()) {
                MessageAccessor.putProperty(inner, key, properties.getString(key));
            }
            inner.setPropertiesString(
                MessageDecoder.messageProperties2String(inner.getProperties()));
            inner.setBornTimestamp(System.currentTimeMillis());
            String born = one.containsKey("born_host") ? one.getString("born_host") : "127.0.0.1";
            inner.setBornHost(new InetSocketAddress(born, 40000));
            inner.setStoreHost(new InetSocketAddress("127.0.0.1", 10911));
            PutMessageResult result = store.putMessage(inner);
            JSONObject answer = new JSONObject();
            answer.put("status", String.valueOf(result.getPutMessageStatus()));
            if (result.getAppendMessageResult() != null) {
                answer.put("physical_offset", result.getAppendMessageResult().getWroteOffset());
                answer.put("queue_offset", result.getAppendMessageResult().getLogicsOffset());
            }
            results.add(answer);
        }
        waitForDispatch();
        JSONObject answer = new JSONObject();
        answer.put("results", results);
        return answer;
    }

    private JSONObject serve(JSONObject request) throws InterruptedException {
        Thread.sleep(request.getLongValue("millis"));
        waitForDispatch();
        JSONObject answer = new JSONObject();
        answer.put("now", System.currentTimeMillis());
        return answer;
    }

    private JSONObject close() {
        if (timers != null) {
            timers.shutdown();
            timers = null;
        }
        if (delays != null) {
            delays.shutdown();
            delays = null;
        }
        store.shutdown();
        store = null;
        JSONObject answer = new JSONObject();
        answer.put("closed", true);
        return answer;
    }
}
