import com.alibaba.fastjson.JSONArray;
import com.alibaba.fastjson.JSONObject;
import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.List;
import java.util.TreeMap;
import org.apache.rocketmq.common.message.Message;
import org.apache.rocketmq.common.message.MessageAccessor;
import org.apache.rocketmq.common.message.MessageConst;
import org.apache.rocketmq.common.message.MessageDecoder;
import org.apache.rocketmq.common.message.MessageExt;
import org.apache.rocketmq.common.message.MessageExtBrokerInner;
import org.apache.rocketmq.common.sysflag.MessageSysFlag;

/** Inner batches: made as RocketMQ's broker makes them, taken apart as its client does. */
final class Batches {
    private Batches() { }

    /** Makes {@code inner} a batch of rows [body, properties]. */
    static void fold(MessageExtBrokerInner inner, JSONArray rows) {
        List<Message> messages = new ArrayList<>();
        for (int i = 0; i < rows.size(); i++) {
            byte[] body = rows.getJSONArray(i).getString(0).getBytes(StandardCharsets.UTF_8);
            Message message = new Message(inner.getTopic(), body);
            JSONObject properties = rows.getJSONArray(i).getJSONObject(1);
            for (String key : properties.keySet()) {
                MessageAccessor.putProperty(message, key, properties.getString(key));
            }
            messages.add(message);
        }
        inner.setBody(MessageDecoder.encodeMessages(messages));
        inner.setSysFlag(inner.getSysFlag() | MessageSysFlag.INNER_BATCH_FLAG
            | MessageSysFlag.NEED_UNWRAP_FLAG);
        MessageAccessor.putProperty(inner, MessageConst.PROPERTY_INNER_NUM,
            String.valueOf(MessageDecoder.countInnerMsgNum(
                java.nio.ByteBuffer.wrap(inner.getBody()))));
    }

    /** Returns the messages of a batch as [queue offset, body, properties]. */
    static JSONArray unfold(MessageExt outer) throws Exception {
        List<MessageExt> messages = new ArrayList<>();
        MessageDecoder.decodeMessage(outer, messages);
        JSONArray rows = new JSONArray();
        for (MessageExt one : messages) {
            JSONArray row = new JSONArray();
            row.add(one.getQueueOffset());
            row.add(new String(one.getBody(), StandardCharsets.UTF_8));
            row.add(new TreeMap<>(one.getProperties()));
            rows.add(row);
        }
        return rows;
    }
}
