import com.alibaba.fastjson.JSONArray;
import com.alibaba.fastjson.JSONObject;
import java.util.ArrayList;
import java.util.List;
import org.apache.rocketmq.broker.BrokerController;
import org.apache.rocketmq.broker.transaction.AbstractTransactionalMessageCheckListener;
import org.apache.rocketmq.broker.transaction.queue.TransactionalMessageBridge;
import org.apache.rocketmq.broker.transaction.queue.TransactionalMessageServiceImpl;
import org.apache.rocketmq.common.BrokerConfig;
import org.apache.rocketmq.common.message.MessageExt;
import org.apache.rocketmq.remoting.netty.NettyClientConfig;
import org.apache.rocketmq.remoting.netty.NettyServerConfig;
import org.apache.rocketmq.store.DefaultMessageStore;
import org.apache.rocketmq.store.config.MessageStoreConfig;

/** RocketMQ's check of open transactions beside a store: one round, as its thread does it. */
final class Halves {
    private static final int CHECKS_MAX = 1_000;

    private Halves() {
    }

    static JSONObject check(DefaultMessageStore store, BrokerConfig broker, long timeout) {
        MessageStoreConfig config = store.getMessageStoreConfig();
        BrokerController controller = new BrokerController(
            broker, new NettyServerConfig(), new NettyClientConfig(), config);
        controller.setMessageStore(store);
        controller.getTopicConfigManager().load();
        controller.getConsumerOffsetManager().load();
        TransactionalMessageServiceImpl service = new TransactionalMessageServiceImpl(
            new TransactionalMessageBridge(controller, store));
        List<MessageExt> asked = new ArrayList<>();
        List<MessageExt> discarded = new ArrayList<>();
        service.check(timeout, CHECKS_MAX, new AbstractTransactionalMessageCheckListener() {
            @Override
            public void resolveHalfMsg(MessageExt half) {
                asked.add(half);
            }

            @Override
            public void resolveDiscardMsg(MessageExt half) {
                discarded.add(half);
            }
        });
        service.close();
        controller.getConsumerOffsetManager().persist();
        JSONObject answer = new JSONObject();
        answer.put("asked", keys(asked));
        answer.put("discarded", keys(discarded));
        return answer;
    }

    private static JSONArray keys(List<MessageExt> messages) {
        JSONArray found = new JSONArray();
        for (MessageExt one : messages) {
            found.add(one.getProperty("UNIQ_KEY"));
        }
        return found;
    }
}
